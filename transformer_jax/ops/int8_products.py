"""Products of int8 on both sides, as other runtimes compute them, and as training simulates them.

    q = round(w m)              m: a factor of the matrix, or of each output channel
    a = round(x alpha)          in [-127, 127]
    y = sum_k a_k q_k / (alpha m) + b

`static`, of Bergamot's engine (`int8shiftAlphaAll`; `tensors/cpu/` of browsermt/marian-dev): alpha
is one number of each matrix, measured beforehand, and what it makes larger than 127 is cut; m is
one number too. `dynamic`, of CTranslate2 (`src/ops/quantize.cc`): alpha is 127 / max |x| of each
row, m = 127 / max |w| of each output channel.

The engine adds 127 to each a, because its kernels want one side without a sign:

    y = sum_k (a_k + 127) q_k u + (b - u sum_k 127 q_k)       u = 1 / (alpha m)

which `of_whole` rounds to float32 where the engine does. Its kernels of
WebAssembly, SSSE3 and AVX2 then add products in pairs (k = 0 and 1, 2 and 3, ...) in int16, where a
sum above 32767 is cut; those of AVX512-VNNI do not. `static_factor` is the largest m with which no
pair can exceed it, so the result is the same on every machine, and a plain product of whole
numbers.

Training sees rounding as the identity (Bengio et al. 2013, arXiv:1308.3432; Jacob et al. 2018,
arXiv:1712.05877).
"""

from collections.abc import Callable
from dataclasses import replace

import jax
import jax.numpy as jnp
from jax import Array

from transformer_jax.ops.matrices import LARGEST, Int8Matrix, Int8Products, Static
from transformer_jax.ops.sums import apart

#: A pair of products is at most 254 times the sum of q of one sign, and 254 * 129 < 2^15. Rounding
#: adds up to 1 to the sum.
_LARGEST_PAIR = 128

#: A table of embeddings gets rows of zeros up to a multiple of this: XLA's CPU backend takes up to
#: a fifth less time for 32,064 rows than for 32,002.
_TABLE_ROWS = 64


@jax.custom_jvp
def nearest(x: Array) -> Array:
    """x rounded to whole numbers from -127 to 127, halves to even.

    Its derivative is 1, and 0 for what is cut.
    """
    return jnp.clip(jnp.round(x), -LARGEST, LARGEST)


nearest.defjvps(lambda dx, y, x: jnp.where(jnp.abs(x) < LARGEST + 0.5, dx, 0.0))


def rounded(x: Array, alpha: Array | None, contracted: int) -> tuple[Array, Array]:
    """The whole numbers of what is multiplied with a matrix, and the factor that gave them.

    Args:
        x: [..., K...].
        alpha: a scalar; None: that of each row.
        contracted: the number of axes K.

    Returns:
        (float32 of the shape of x; the factor, a scalar or with 1 in place of each axis K).
    """
    x = x.astype(jnp.float32)
    if alpha is not None:
        return nearest(x * alpha), alpha
    axes = tuple(range(x.ndim - contracted, x.ndim))
    alpha = _factor(jnp.max(jnp.abs(x), axes, keepdims=True))
    return nearest(x * alpha), alpha


def static_factor(w: Array, contracted: int) -> Array:
    """m of a matrix that is multiplied with something: no pair exceeds int16.

    Args:
        w: [I, O] or [O, I].
        contracted: the axis I, which products sum over.

    Returns:
        A float32 scalar.
    """
    w_IO = jnp.moveaxis(w.astype(jnp.float32), contracted, 0)
    w_P2O = jnp.pad(w_IO, ((0, len(w_IO) % 2), (0, 0))).reshape(-1, 2, w_IO.shape[1])
    of_one_sign = [jnp.maximum(sign * w_P2O, 0).sum(1).max() for sign in (1, -1)]
    by_pairs = _LARGEST_PAIR / _nonzero(jnp.maximum(*of_one_sign))
    return jax.lax.stop_gradient(jnp.minimum(_factor(jnp.abs(w_IO).max()), by_pairs))


def lookup_factor(w: Array) -> Array:
    """m of a table that is only looked up, a float32 scalar."""
    return _factor(jnp.abs(w.astype(jnp.float32)).max())


def in_static_int8(w: Array, contracted: int, factor: Array, alpha: Array | None) -> Int8Products:
    """A matrix for `static` products.

    Args:
        w: [I, O] or [O, I].
        contracted: the axis I.
        factor: m, from `static_factor` or `lookup_factor`.
        alpha: a scalar; None for a table that is only looked up.
    """
    scale_shape = [size if axis != contracted else 1 for axis, size in enumerate(w.shape)]
    scale = jnp.broadcast_to(1 / factor, scale_shape)
    static = None if alpha is None else Static(alpha, 1 / (alpha * factor))
    return Int8Products(nearest(w.astype(jnp.float32) * factor), scale, static)


def in_dynamic_int8(w: Array, contracted: int) -> Int8Products:
    """A matrix for `dynamic` products.

    Args:
        w: [I, O] or [O, I].
        contracted: the axis I.
    """
    w = w.astype(jnp.float32)
    factor = _factor(jnp.abs(w).max(contracted, keepdims=True))
    return Int8Products(nearest(w * factor), 1 / factor, None)


def in_rows(w: Int8Products, contracted: int) -> Int8Matrix:
    """A matrix as decoding holds it.

    Args:
        w: [I, O] or [O, I].
        contracted: the axis I.
    """
    turned = w if contracted else w.T
    values = turned.values.astype(jnp.int8)
    sums = None if w.static is None else values.sum(1, dtype=jnp.int32)
    if contracted:
        values = jnp.pad(values, ((0, -len(values) % _TABLE_ROWS), (0, 0)))
    return Int8Matrix(values, turned.scale, w.static, sums, everywhere=True)


def quantize(w: Array, contracted: int) -> Int8Matrix:
    """A matrix of floats with the nearest int8 values, as of `in_dynamic_int8`."""
    return replace(in_rows(in_dynamic_int8(w, contracted), contracted), everywhere=False)


def of_whole(
    x: Array,
    w: Int8Matrix | Int8Products,
    contracted: int,
    bias: Array | None,
    product: Callable[[Array], Array],
) -> Array:
    """A product of whole numbers in float32, plus a bias.

    Args:
        x: [..., K...].
        w: the matrix, [K..., N...].
        contracted: the number of axes K.
        bias: [N...]; None = 0.
        product: sums of a [..., K...], whole numbers in float32, with those of w: exact, int32 or
            float32.

    Returns:
        [..., N...].
    """
    static = w.static
    a, alpha = rounded(x, None if static is None else static.alpha, contracted)
    total = product(a)
    outputs = total.shape[x.ndim - contracted :]
    if static is None:
        alpha = alpha.reshape(*alpha.shape[: x.ndim - contracted], *(1,) * len(outputs))
        units = jax.lax.broadcast_to_rank(w.scale.reshape(outputs), total.ndim) / alpha
        y = apart(total.astype(jnp.float32) * units)
    else:
        if isinstance(w, Int8Matrix):
            sums = w.sums.reshape(outputs)
        else:
            sums = jax.lax.stop_gradient(w.values).sum(tuple(range(contracted)))
        shifted = total + jax.lax.broadcast_to_rank(LARGEST * sums, total.ndim)
        y = apart(shifted.astype(jnp.float32) * static.unit)
        constant = apart(LARGEST * static.unit * sums.astype(jnp.float32))
        bias = -constant if bias is None else bias - constant
    return y if bias is None else y + jax.lax.broadcast_to_rank(bias, y.ndim)


def _factor(largest: Array) -> Array:
    """127 / the largest size of some numbers; 127 where they are all 0."""
    return jax.lax.stop_gradient(LARGEST / _nonzero(largest))


def _nonzero(x: Array) -> Array:
    return jnp.where(x == 0, 1.0, x)
