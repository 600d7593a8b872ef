"""Dropout (Srivastava et al. 2014) with random bits that cost one hash per element.

A counter-based generator (threefry) spends about twenty rounds on every number; in a small
model that takes as long as the matrix products. Dropout does not need this quality. Here a
32-bit integer hash (two multiplications and three xor-shifts, with the constants of
C. Wellons' `lowbias32`) mixes each element's flat index with two words of the key, and XLA
fuses it into the multiplication that follows. The bits depend only on the index and the key,
so they are the same on one device and on many.
"""

import jax
import jax.numpy as jnp
from jax import Array

from transformer_jax.ops.sharding import rows_part


def random_bits(key: Array, shape: tuple[int, ...], batch_axis: int = 0) -> Array:
    """Uniform uint32 of `shape`: a hash of each flat index and `key`.

    Args:
        key: a PRNG key.
        shape: any.
        batch_axis: the axis of the batch's rows. Where each device traces its own rows
            (`sharding.own_rows`), the index is that in the whole batch.
    """
    word_a, word_b = jax.random.bits(key, (2,), jnp.uint32)
    part, parts = rows_part()
    index = jnp.zeros(shape, jnp.uint32)
    stride = 1
    for axis in reversed(range(len(shape))):
        at, size = jax.lax.broadcasted_iota(jnp.uint32, shape, axis), shape[axis]
        if axis == batch_axis:
            at, size = at + jnp.uint32(part) * jnp.uint32(size), size * parts
        index += at * jnp.uint32(stride % 2**32)
        stride *= size
    h = (index ^ word_a) * jnp.uint32(0x9E3779B1) + word_b
    h = (h ^ (h >> 16)) * jnp.uint32(0x7FEB352D)
    h = (h ^ (h >> 15)) * jnp.uint32(0x846CA68B)
    return h ^ (h >> 16)


def dropout(x: Array, rate: float, key: Array | None, *, batch_axis: int = 0) -> Array:
    """Zeroes each element with probability `rate` and scales the rest by 1/(1-rate).

    Args:
        x: any shape.
        rate: in [0, 1); resolution 2^-32.
        key: a PRNG key; None means no dropout (evaluation).
        batch_axis: see `random_bits`.

    Raises:
        ValueError: another rate.
    """
    if not 0.0 <= rate < 1.0:
        raise ValueError(f"dropout rate must lie in [0, 1), got {rate}")
    if key is None or rate == 0.0:
        return x
    keep = random_bits(key, x.shape, batch_axis) >= jnp.uint32(int(rate * 2**32))
    return jnp.where(keep, x / jnp.asarray(1.0 - rate, x.dtype), jnp.zeros((), x.dtype))
