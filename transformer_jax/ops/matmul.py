"""The matrix product of every projection: low-precision operands, summed up in float32.

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

On an NVIDIA GPU a product is a call of cuBLAS, which XLA does not fuse with what follows. So where
a bfloat16 result is asked for, the call itself adds the bias (rounded to bfloat16) to its float32
sums, rounds them, and writes half of the bytes; it does so for matrices of two axes alone, so
there the axes are joined. `plan/` shows the difference.

Products with a matrix of int8 (`ops/matrices.py`, `ops/int8_products.py`) sum whole numbers in
int32, so that no batch and no thread changes a sum. Where only the matrix is of int8, on a TPU and
on a GPU, XLA fuses its conversion with the product, as long as the scale multiplies the sums.
"""

import math
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import Array
from jax.ad_checkpoint import checkpoint_name
from jax.experimental.layout import Layout, with_layout_constraint
from jax.typing import DTypeLike

from transformer_jax.ops.int8_products import of_whole
from transformer_jax.ops.matrices import Int8Matrix, Int8Products, Matrix
from transformer_jax.ops.platform import by_platform, cpu_flags

#: The name of every product for a policy of `jax.checkpoint`.
PRODUCT = "product"


def matmul(
    x: Array,
    w: Matrix,
    dtype: DTypeLike,
    contracted: int = 1,
    *,
    bias: Array | None = None,
    result: DTypeLike = jnp.float32,
) -> Array:
    """Contracts the last `contracted` axes of `x` with the first ones of `w`, and adds `bias`.

    Args:
        x: [..., K], or [..., K1, K2] with `contracted=2`.
        w: [K, N...], or [K1, K2, N...]; of int8 it has no gradient.
        dtype: the operands, and the incoming gradient, are rounded to it before the product.
        contracted: number of axes that are summed over.
        bias: [N...] float32; None = 0.
        result: dtype to which the sum is rounded.

    Returns:
        [..., N...]; products and bias are summed up in float32.
    """
    if isinstance(w, Int8Matrix | Int8Products):
        return _int8_matmul(x, w, dtype, contracted, bias).astype(result)
    if jnp.dtype(dtype) == jnp.float32:
        y = product(x.astype(jnp.float32), w.astype(jnp.float32), contracted, bias, result)
    else:
        form = _LowPrecision(jnp.dtype(dtype), contracted, jnp.dtype(result))
        y = _low_precision_matmul(form, x, w, bias)
    return checkpoint_name(y, PRODUCT)


def _int8_matmul(
    x: Array, w: Int8Matrix | Int8Products, dtype: DTypeLike, contracted: int, bias: Array | None
) -> Array:
    if isinstance(w, Int8Products):
        # Whole numbers up to 127 are exact in bfloat16, and so are their sums in float32, to 2^24.
        return of_whole(x, w, contracted, bias, lambda a: matmul(a, w.values, dtype, contracted))
    forms = {"cpu": "flat", "other": "kept" if w.everywhere else "floats"}
    return by_platform(partial(_int8_product, contracted, dtype), x, w, bias, **forms)


@partial(jax.custom_jvp, nondiff_argnums=(0, 1, 5))
def _int8_product(
    contracted: int, dtype: DTypeLike, x: Array, w: Int8Matrix, bias: Array | None, form: str
) -> Array:
    rows, columns = x.shape[: x.ndim - contracted], w.scale.shape[: w.scale.ndim - contracted]

    def whole(a: Array) -> Array:
        a = a.astype(jnp.int8)
        if form == "kept":
            return _sums(a, w.values, contracted, jnp.int32)[..., : columns[-1]]
        a = _with_rows(a.reshape(math.prod(rows), -1), 4 if "amx_int8" in cpu_flags() else 2)
        y = _sums(a, w.values.reshape(-1, a.shape[1]), 1, jnp.int32)
        return y[: math.prod(rows), : math.prod(columns)].reshape(*rows, *columns)

    if form != "floats":
        return of_whole(x, w, contracted, bias, whole)
    y = _product_in_floats(contracted, dtype, x, w)
    return y if bias is None else y + jax.lax.broadcast_to_rank(bias, y.ndim)


@_int8_product.defjvp
def _int8_derivative(
    contracted: int, dtype: DTypeLike, form: str, primals: Any, tangents: Any
) -> tuple[Array, Array]:
    """By the input alone, with rounding as the identity: views of a model need it."""
    y = _int8_product(contracted, dtype, *primals, form)
    return y, _product_in_floats(contracted, jnp.float32, tangents[0], primals[1])


def _product_in_floats(contracted: int, dtype: DTypeLike, x: Array, w: Int8Matrix) -> Array:
    columns = w.scale.shape[: w.scale.ndim - contracted]
    y = _sums(x.astype(dtype), w.values.astype(dtype), contracted, jnp.float32)
    return y[..., : columns[-1]] * jax.lax.broadcast_to_rank(w.scale.reshape(columns), y.ndim)


def _sums(x: Array, w: Array, contracted: int, kind: DTypeLike) -> Array:
    """[..., K...] x [N..., K...] -> [..., N...]."""
    of_x, of_w = (tuple(range(each.ndim - contracted, each.ndim)) for each in (x, w))
    return jax.lax.dot_general(x, w, ((of_x, of_w), ((), ())), preferred_element_type=kind)


class _LowPrecision(NamedTuple):
    """Arguments of `matmul`."""

    dtype: jnp.dtype
    contracted: int
    result: jnp.dtype


@partial(jax.custom_vjp, nondiff_argnums=(0,))
def _low_precision_matmul(form: _LowPrecision, x: Array, w: Array, bias: Array | None) -> Array:
    return _forward(form, x, w, bias)[0]


def _forward(form: _LowPrecision, x: Array, w: Array, bias: Array | None) -> tuple[Array, Any]:
    x_low, w_low = x.astype(form.dtype), w.astype(form.dtype)
    # The empty arrays record the dtypes of the operands, which the gradients must have.
    types = (jnp.zeros(0, x.dtype), jnp.zeros(0, w.dtype))
    y = product(x_low, w_low, form.contracted, bias, form.result)
    return y, (x_low, w_low, bias, types)


def _backward(form: _LowPrecision, residuals: Any, dy: Array) -> tuple[Array, Array, Array | None]:
    x_low, w_low, bias, (x_type, w_type) = residuals
    dy_low = dy.astype(form.dtype)
    rows, columns = x_low.ndim - form.contracted, w_low.ndim - form.contracted
    dx = product(dy_low, transposed(w_low, form.contracted), columns, result=x_type.dtype)
    dw = product(transposed(x_low, rows), dy_low, rows)
    if bias is not None:
        bias = dy.astype(jnp.float32).sum(axis=tuple(range(rows))).astype(bias.dtype)
    return dx, dw.astype(w_type.dtype), bias


_low_precision_matmul.defvjp(_forward, _backward)


def product(
    a: Array,
    b: Array,
    contracted: int = 1,
    bias: Array | None = None,
    result: DTypeLike = jnp.float32,
) -> Array:
    """[M..., K...] x [K..., N...] + [N...] -> [M..., N...], summed up in float32.

    Args:
        contracted: number of axes K.
        bias: [N...] float32; None = 0.
        result: dtype of the result.
    """
    forms = {"cpu": "flat", "other": "whole"}
    if jnp.dtype(result) == a.dtype != jnp.float32:
        forms["cuda"] = "rounded"
    return by_platform(partial(_product, contracted, result), a, b, bias, **forms)


def transposed(x: Array, leading: int = 1) -> Array:
    """[M..., N...] -> [N..., M...], where M are the `leading` axes.

    On a CPU and below float32 it is a row-major copy: without the layout constraint XLA passes
    a column-major view to the product, which the fast kernels do not accept.
    """
    if x.dtype == jnp.float32:
        return _transposed(leading, x, False)
    return by_platform(partial(_transposed, leading), x, cpu=True, other=False)


def _product(
    contracted: int, result: DTypeLike, a: Array, b: Array, bias: Array | None, form: str
) -> Array:
    if form == "flat":
        y = _flat_product(contracted, a, b)
    elif form == "rounded":
        rows, columns = a.shape[: a.ndim - contracted], b.shape[contracted:]
        a, b = a.reshape(math.prod(rows), -1), b.reshape(-1, math.prod(columns))
        y = jnp.matmul(a, b, preferred_element_type=result)
        if bias is not None:
            y = y + bias.reshape(1, -1).astype(result)
        return y.reshape(*rows, *columns)
    else:
        y = jnp.tensordot(a, b, contracted, preferred_element_type=jnp.float32)
    if bias is not None:
        y = y + jax.lax.broadcast_to_rank(bias.astype(y.dtype), y.ndim)
    return y.astype(result)


def _flat_product(contracted: int, a: Array, b: Array) -> Array:
    rows, columns = a.shape[: a.ndim - contracted], b.shape[contracted:]
    a, b = _with_rows(a.reshape(math.prod(rows), -1), 2), b.reshape(-1, math.prod(columns))
    if a.dtype == jnp.float32:
        y = jnp.matmul(a, b)
    else:
        # A transposed matrix is copied: the table of embeddings, as the projection to logits.
        y = jnp.matmul(a, _row_major(b), preferred_element_type=jnp.float32)
        # XLA would fold a following transpose into the product, which its CPU backend then refuses
        # below float32 ("Unsupported element type for DotThunk"). The constraint costs nothing.
        y = _row_major(y)
    return y[: math.prod(rows)].reshape(*rows, *columns)


def _with_rows(a: Array, least: int) -> Array:
    """With rows of zeros where there are fewer: XLA's CPU backend has slow loops for one row.

    Where a CPU has tiles (AMX), its products of int8 take less time for four rows than for two.
    """
    return jnp.pad(a, ((0, max(0, least - len(a))), (0, 0)))


def _transposed(leading: int, x: Array, flat: bool) -> Array:
    if not flat:
        return jnp.transpose(x, (*range(leading, x.ndim), *range(leading)))
    rows, columns = x.shape[:leading], x.shape[leading:]
    x = x.reshape(math.prod(rows), math.prod(columns))
    return _row_major(x.T).reshape(*columns, *rows)


def _row_major(x: Array) -> Array:
    return with_layout_constraint(x, Layout(major_to_minor=(0, 1)))
