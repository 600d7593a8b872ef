"""The matrix product of every projection: low-precision operands, float32 result.

Axes are kept: a projection to heads is a product of [B, T, D] and [D, H, K], not of [B, T, D]
and [D, H K] followed by a reshape. On a TPU the two differ: its arrays are tiled over their two
minor axes, and splitting H K into H and K moves every number to another tile, which costs two
copies of each of queries, keys and values.

XLA's CPU backend runs a row-major bfloat16 x bfloat16 -> float32 product at about twice the
speed of float32 (more with AMX), but only in this form. More than two axes, the transposed
operands of automatic differentiation, and bfloat16 results use slower kernels. So on a CPU the
operands are flattened to two axes (in float32 too), and the backward pass makes row-major
copies of its transposes, which cost far less than they save. Measure it with
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
    """Contracts the last `contracted` axes of `x` with the first ones of `w`.

    Args:
        x: [..., K], or [..., K1, K2] with `contracted=2`.
        w: [K, N...], or [K1, K2, N...].
        dtype: the operands, and the incoming gradient, are rounded to it before the product.
        contracted: number of axes that are summed over.

    Returns:
        [..., N...] in float32, in which the product is accumulated.
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
    # The empty arrays record the dtypes of the operands, which the gradients must have.
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

    `contracted` is the number of axes K.
    """
    return by_platform(partial(_product, contracted), a, b, cpu=True, other=False)


def transposed(x: jax.Array, leading: int = 1) -> jax.Array:
    """[M..., N...] -> [N..., M...], where M are the `leading` axes.

    On a CPU and below float32 it is a row-major copy: without the layout constraint XLA passes
    a column-major view to the product, which the fast kernels do not accept.
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
    # XLA would fold a following transpose into the product, which its CPU backend then refuses
    # below float32 ("Unsupported element type for DotThunk"). The constraint costs nothing.
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
