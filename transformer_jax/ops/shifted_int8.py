"""Products in int8 as Bergamot's engine computes them, `int8shiftAlphaAll`.

    q = clip(round(w m), -127, 127)                m = 127 / max |W|
    a = clip(round(x alpha), -127, 127) + 127      alpha = 127 / the largest |x| that is expected
    y = sum_k a_k q_k / (alpha m) + b - 127 sum_k q_k / (alpha m)

The shift by 127 makes `a` unsigned, which the instructions of x86 want. Those of WebAssembly, SSSE3
and AVX2 add products in pairs (k = 0 and 1, 2 and 3, ...) in int16, which saturates; AVX512-VNNI
does not. Sources: `tensors/cpu/` of browsermt/marian-dev, and its `wasm/` kernels.
"""

import math

import jax
import jax.numpy as jnp

from transformer_jax.ops.matrices import LARGEST, ShiftedInt8

#: Pairs that are summed up at a time.
_PAIRS = 8


def shifted(w: jax.Array, alpha: float = 1.0) -> ShiftedInt8:
    """The nearest int8 matrix, with one multiplier for all of it.

    Args:
        w: a matrix of floats.
        alpha: of what it is multiplied with; a table that is only looked up needs none.
    """
    w = w.astype(jnp.float32)
    largest = jnp.max(jnp.abs(w))
    multiplier = LARGEST / jnp.where(largest == 0, 1.0, largest)
    values = jnp.clip(jnp.round(w * multiplier), -LARGEST, LARGEST).astype(jnp.int8)
    return ShiftedInt8(values, multiplier, jnp.float32(alpha))


def shifted_product(
    x: jax.Array, w: ShiftedInt8, contracted: int, bias: jax.Array | None = None
) -> jax.Array:
    """Contracts the last axes of `x` with the first ones of `w`, with saturation.

    Args:
        x: [..., K...].
        w: [K..., N...]; the product of the K is even.
        contracted: number of axes K.
        bias: [N...] float32; None = 0.

    Returns:
        [..., N...] float32.
    """
    rows, columns = x.shape[: x.ndim - contracted], w.shape[contracted:]
    q_KN = w.values.reshape(-1, math.prod(columns)).astype(jnp.int32)
    x_MK = x.reshape(math.prod(rows), -1).astype(jnp.float32)
    a_MK = jnp.clip(jnp.round(x_MK * w.alpha), -LARGEST, LARGEST).astype(jnp.int32) + LARGEST
    unit = 1.0 / (w.alpha * w.multiplier)
    offset_N = -LARGEST * q_KN.sum(0).astype(jnp.float32) * unit
    if bias is not None:
        offset_N = offset_N + bias.reshape(-1).astype(jnp.float32)
    y_MN = _sums_of_pairs(a_MK, q_KN).astype(jnp.float32) * unit + offset_N[None]
    return y_MN.reshape(*rows, *columns)


def _sums_of_pairs(a_MK: jax.Array, q_KN: jax.Array) -> jax.Array:
    """[M, N] int32: sums of a q, in which each pair of neighbours k was clipped to int16."""
    pairs = len(q_KN) // 2
    steps = -(-pairs // _PAIRS)
    missing = 2 * (steps * _PAIRS - pairs)
    a_SMP2 = jnp.moveaxis(
        jnp.pad(a_MK, ((0, 0), (0, missing))).reshape(len(a_MK), steps, _PAIRS, 2), 1, 0
    )
    q_SPN2 = jnp.moveaxis(jnp.pad(q_KN, ((0, missing), (0, 0))).reshape(steps, _PAIRS, 2, -1), 2, 3)

    def step(sums_MN: jax.Array, parts: tuple[jax.Array, jax.Array]) -> tuple[jax.Array, None]:
        a_MP2, q_PN2 = parts
        pairs_MPN = (a_MP2[:, :, None] * q_PN2[None]).sum(-1)
        return sums_MN + jnp.clip(pairs_MPN, -(2**15), 2**15 - 1).sum(1), None

    zeros_MN = jnp.zeros((len(a_MK), q_KN.shape[1]), jnp.int32)
    return jax.lax.scan(step, zeros_MN, (a_SMP2, q_SPN2))[0]
