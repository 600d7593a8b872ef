"""Dropout (Srivastava et al. 2014) whose random bits cost one hash an element.

A counter-based generator (threefry) spends about twenty rounds on every number,
which in a small model takes as long as the matrix products. Dropout needs no such
quality: here each element's flat index is mixed with two key words by a 32-bit
integer hash (two multiplications and three xor-shifts, the constants of
C. Wellons' `lowbias32`), which XLA fuses into the multiplication that follows. The
bits depend on the index alone, so they are the same on one device and on many.
"""

import jax
import jax.numpy as jnp


def random_bits(key: jax.Array, shape: tuple[int, ...]) -> jax.Array:
    """Uniform uint32 of `shape`: a hash of each flat index and `key`."""
    word_a, word_b = jax.random.bits(key, (2,), jnp.uint32)
    index = jnp.zeros(shape, jnp.uint32)
    stride = 1
    for axis in reversed(range(len(shape))):
        index += jax.lax.broadcasted_iota(jnp.uint32, shape, axis) * jnp.uint32(stride % 2**32)
        stride *= shape[axis]
    h = (index ^ word_a) * jnp.uint32(0x9E3779B1) + word_b
    h = (h ^ (h >> 16)) * jnp.uint32(0x7FEB352D)
    h = (h ^ (h >> 15)) * jnp.uint32(0x846CA68B)
    return h ^ (h >> 16)


def dropout(x: jax.Array, rate: float, key: jax.Array | None) -> jax.Array:
    """Zeroes each element with probability `rate` and scales the rest by 1/(1-rate).

    Args:
        x: any shape.
        rate: in [0, 1); resolution 2^-32.
        key: a PRNG key; None means no dropout (evaluation).
    """
    if key is None or rate == 0.0:
        return x
    if not 0.0 <= rate < 1.0:
        raise ValueError(f"dropout rate must lie in [0, 1), got {rate}")
    keep = random_bits(key, x.shape) >= jnp.uint32(int(rate * 2**32))
    return jnp.where(keep, x / jnp.asarray(1.0 - rate, x.dtype), jnp.zeros((), x.dtype))
