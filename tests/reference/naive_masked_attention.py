"""Softmax attention under an explicit L x L mask, the same for all heads and rows."""

import jax.numpy as jnp


def naive_masked_attention(q, k, v, key_mask, allowed_LL, bias_HLL=None):
    """q, k [B, L, H, K], v [B, L, H, V], key_mask [B, L] -> [B, L, H, V]."""
    scores = jnp.einsum("blhk,bmhk->bhlm", q, k) / jnp.sqrt(q.shape[-1])
    if bias_HLL is not None:
        scores = scores + bias_HLL
    mask = jnp.asarray(allowed_LL)[None, None] & key_mask[:, None, None, :]
    weights = jnp.where(mask, jnp.exp(scores - scores.max(-1, keepdims=True)), 0.0)
    total = weights.sum(-1, keepdims=True)
    # A query that may read nothing is padding; its output is not used.
    return jnp.einsum("bhlm,bmhv->blhv", weights / jnp.where(total > 0, total, 1.0), v)
