"""The one matrix product behind every projection: low-precision in, float32 out.

XLA's CPU backend runs a plain row-major bfloat16 x bfloat16 -> float32 product at
about twice the speed of float32 (more with AMX), but only in that one form: the
transposed operands that automatic differentiation asks for, and bfloat16 results,
fall back to slower kernels. So the backward pass here writes its transposes out as
real row-major copies, which cost far less than the product they speed up.
Measure it with `python benchmarks/matmul_forms.py`.
"""

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from jax.experimental.layout import Layout, with_layout_constraint
from jax.typing import DTypeLike

from transformer_jax.ops.platform import by_platform


def matmul(x: jax.Array, w: jax.Array, dtype: DTypeLike) -> jax.Array:
    """Multiplies the last axis of `x` by `w`, in float32 accumulation.

    Args:
        x: [..., K].
        w: [K, N].
        dtype: operands are rounded to it before the product, the incoming
            gradient too; float32 leaves everything as it is.

    Returns:
        [..., N] in float32.
    """
    x_NK = x.reshape(-1, x.shape[-1])
    if jnp.dtype(dtype) == jnp.float32:
        y_NN = jnp.matmul(x_NK.astype(jnp.float32), w.astype(jnp.float32))
    else:
        y_NN = _low_precision_matmul(x_NK, w, dtype)
    return y_NN.reshape(*x.shape[:-1], w.shape[-1])


@partial(jax.custom_vjp, nondiff_argnums=(2,))
def _low_precision_matmul(x: jax.Array, w: jax.Array, dtype: DTypeLike) -> jax.Array:
    return product(x.astype(dtype), w.astype(dtype))


def _forward(x: jax.Array, w: jax.Array, dtype: DTypeLike) -> tuple[jax.Array, Any]:
    x_low, w_low = x.astype(dtype), w.astype(dtype)
    # The empty arrays carry the operands' own dtypes, which the gradients must have.
    types = (jnp.zeros(0, x.dtype), jnp.zeros(0, w.dtype))
    return product(x_low, w_low), (x_low, w_low, types)


def _backward(dtype: DTypeLike, residuals: Any, dy: jax.Array) -> tuple[jax.Array, jax.Array]:
    x_low, w_low, (x_type, w_type) = residuals
    dy_low = dy.astype(dtype)
    dx = product(dy_low, transposed(w_low)).astype(x_type.dtype)
    dw = product(transposed(x_low), dy_low).astype(w_type.dtype)
    return dx, dw


_low_precision_matmul.defvjp(_forward, _backward)


def product(a: jax.Array, b: jax.Array) -> jax.Array:
    """[M, K] x [K, N] -> [M, N] accumulated and returned in float32."""
    y = jnp.matmul(a, b, preferred_element_type=jnp.float32)
    # A transpose that follows would be folded into the product and make it one of
    # the forms that XLA's CPU backend refuses below float32 ("Unsupported element
    # type for DotThunk"); the constraint keeps them apart, at no cost.
    return y if a.dtype == jnp.float32 else _row_major_on_cpu(y)


def transposed(x: jax.Array) -> jax.Array:
    """[M, N] -> [N, M]; on CPU and below float32, as a row-major copy in memory.

    Without the layout constraint XLA hands the product a column-major view, which
    the fast kernels refuse.
    """
    return x.T if x.dtype == jnp.float32 else _row_major_on_cpu(x.T)


def _row_major_on_cpu(x: jax.Array) -> jax.Array:
    def row_major(x: jax.Array, needed: bool) -> jax.Array:
        return with_layout_constraint(x, Layout(major_to_minor=(0, 1))) if needed else x

    return by_platform(row_major, x, cpu=True, other=False)
