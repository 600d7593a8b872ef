"""The one matrix product behind every projection: low-precision in, float32 out.

Axes stay as they are given: a projection to heads is a product of [B, T, D] and
[D, H, K], not of [B, T, D] and [D, H K] with a reshape after it. To a TPU these differ:
its arrays are tiles of their two minor axes, and splitting H K into H and K moves every
number to another tile, at the cost of two copies of each of queries, keys and values.

XLA's CPU backend runs a plain row-major bfloat16 x bfloat16 -> float32 product at
about twice the speed of float32 (more with AMX), but only in that one form: more than
two axes, the transposed operands that automatic differentiation asks for, and bfloat16
results fall back to slower kernels. So there the operands are flattened to two axes
(float32's too), and the backward pass writes its transposes out as real row-major copies,
which cost far less than the product they speed up. Measure it with
`python benchmarks/matmul_forms.py`.
"""

import math
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from jax.experimental.layout import Layout, with_layout_constraint
from jax.typing import DTypeLike

from transformer_jax.ops.platform import by_platform


def matmul(x: jax.Array, w: jax.Array, dtype: DTypeLike, contracted: int = 1) -> jax.Array:
    """Multiplies the last `contracted` axes of `x` by as many first axes of `w`.

    Args:
        x: [..., K], or [..., K1, K2] with `contracted=2`.
        w: [K, N...], or [K1, K2, N...].
        dtype: operands are rounded to it before the product, the incoming
            gradient too; float32 leaves everything as it is.
        contracted: how many axes are summed over.

    Returns:
        [..., N...] in float32, where the product is accumulated.
    """
    if jnp.dtype(dtype) == jnp.float32:
        return product(x.astype(jnp.float32), w.astype(jnp.float32), contracted)
    return _low_precision_matmul(x, w, dtype, contracted)


@partial(jax.custom_vjp, nondiff_argnums=(2, 3))
def _low_precision_matmul(
    x: jax.Array, w: jax.Array, dtype: DTypeLike, contracted: int
) -> jax.Array:
    return product(x.astype(dtype), w.astype(dtype), contracted)


def _forward(
    x: jax.Array, w: jax.Array, dtype: DTypeLike, contracted: int
) -> tuple[jax.Array, Any]:
    x_low, w_low = x.astype(dtype), w.astype(dtype)
    # The empty arrays carry the operands' own dtypes, which the gradients must have.
    types = (jnp.zeros(0, x.dtype), jnp.zeros(0, w.dtype))
    return product(x_low, w_low, contracted), (x_low, w_low, types)


def _backward(
    dtype: DTypeLike, contracted: int, residuals: Any, dy: jax.Array
) -> tuple[jax.Array, jax.Array]:
    x_low, w_low, (x_type, w_type) = residuals
    dy_low = dy.astype(dtype)
    rows = x_low.ndim - contracted
    dx = product(dy_low, transposed(w_low, contracted), w_low.ndim - contracted)
    dw = product(transposed(x_low, rows), dy_low, rows)
    return dx.astype(x_type.dtype), dw.astype(w_type.dtype)


_low_precision_matmul.defvjp(_forward, _backward)


def product(a: jax.Array, b: jax.Array, contracted: int = 1) -> jax.Array:
    """[M..., K...] x [K..., N...] -> [M..., N...], accumulated and returned in float32.

    `contracted` says how many axes are K's.
    """
    return by_platform(partial(_product, contracted), a, b, cpu=True, other=False)


def transposed(x: jax.Array, leading: int = 1) -> jax.Array:
    """[M..., N...] -> [N..., M...], where M are the `leading` axes.

    On CPU and below float32 a row-major copy in memory: without the layout constraint XLA
    hands the product a column-major view, which the fast kernels refuse.
    """
    if x.dtype == jnp.float32:
        return _transposed(leading, x, False)
    return by_platform(partial(_transposed, leading), x, cpu=True, other=False)


def _product(contracted: int, a: jax.Array, b: jax.Array, flat: bool) -> jax.Array:
    if not flat:
        return jnp.tensordot(a, b, contracted, preferred_element_type=jnp.float32)
    rows, columns = a.shape[: a.ndim - contracted], b.shape[contracted:]
    a, b = a.reshape(math.prod(rows), -1), b.reshape(-1, math.prod(columns))
    y = jnp.matmul(a, b, preferred_element_type=jnp.float32)
    # A transpose that follows would be folded into the product and make it one of
    # the forms that XLA's CPU backend refuses below float32 ("Unsupported element
    # type for DotThunk"); the constraint keeps them apart, at no cost.
    y = y if a.dtype == jnp.float32 else _row_major(y)
    return y.reshape(*rows, *columns)


def _transposed(leading: int, x: jax.Array, flat: bool) -> jax.Array:
    if not flat:
        return jnp.transpose(x, (*range(leading, x.ndim), *range(leading)))
    rows, columns = x.shape[:leading], x.shape[leading:]
    x = x.reshape(math.prod(rows), math.prod(columns))
    return _row_major(x.T).reshape(*columns, *rows)


def _row_major(x: jax.Array) -> jax.Array:
    return with_layout_constraint(x, Layout(major_to_minor=(0, 1)))
