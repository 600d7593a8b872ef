"""Boolean attention masks: True where a query may look at a key."""

import jax
import jax.numpy as jnp

#: Added to masked scores. Finite, so that a row with nothing to attend (a row that
#: only fills up a batch) gives numbers and not NaN.
MASKED = -1e30


def causal_mask(length: int) -> jax.Array:
    """[L, L], True where key position <= query position."""
    return jnp.tril(jnp.ones((length, length), bool))


def attention_mask(key_mask_BM: jax.Array, *, causal: bool) -> jax.Array:
    """[B, 1, L or 1, M] for self-attention over real keys, optionally causal."""
    mask = key_mask_BM[:, None, None, :]
    if causal:
        mask = mask & causal_mask(key_mask_BM.shape[-1])[None, None]
    return mask
