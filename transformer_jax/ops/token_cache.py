"""Caches [B, L, ...] that decoding fills one position at a time."""

import jax


def write_token(cache_BL: jax.Array, token_B: jax.Array, position: jax.Array) -> jax.Array:
    """`cache_BL` with `token_B` at `position`, in the cache's dtype.

    Read the cache that comes back, not the one that went in: else XLA keeps a copy of all of it.

    Args:
        cache_BL: [B, L, ...].
        token_B: [B, ...] or [B, 1, ...].
        position: a scalar below L.
    """
    return jax.lax.dynamic_update_index_in_dim(
        cache_BL, token_B.astype(cache_BL.dtype), position, axis=1
    )
