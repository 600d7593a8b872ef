"""Softmax attention under an explicit L x L mask, and the masks of the sparse patterns."""

import jax.numpy as jnp
import numpy as np


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


def naive_window_mask(length, window, dilation, causal):
    """[L, L]: i may read i + d m for -w <= m <= w (causal: m <= 0)."""
    i, j = np.indices((length, length))
    mask = ((j - i) % dilation == 0) & (abs(i - j) <= window * dilation)
    return mask & (j <= i) if causal else mask


def naive_strided_mask(length, stride, causal):
    """[L, L]: neighbours up to a stride away, and all at a multiple of the stride."""
    i, j = np.indices((length, length))
    mask = (abs(i - j) <= stride) | ((i - j) % stride == 0)
    return mask & (j <= i) if causal else mask


def naive_bigbird_mask(length, block, reads, global_blocks, causal):
    """[L, L], given each query block's list of key blocks."""
    mask = np.zeros((length, length), bool)
    for i, j in np.ndindex(length, length):
        is_global = not causal and i // block < global_blocks
        mask[i, j] = (is_global or j // block in reads[i // block]) and (j <= i or not causal)
    return mask


def naive_longformer(local_qkv, global_qkv, key_mask, window, dilation, bias_HLL=None):
    """As `ops.sparse_attention.longformer_attention`."""
    (q, k, v), (q_global, k_global, v_global) = local_qkv, global_qkv
    length, count = q.shape[1], q_global.shape[1]
    allowed = naive_window_mask(length, window, dilation, False)
    allowed[:, :count] = True
    local = naive_masked_attention(q, k, v, key_mask, allowed, bias_HLL)
    padded = jnp.concatenate([q_global, jnp.zeros_like(q[:, count:])], 1)
    all_LL = jnp.ones_like(allowed)
    of_global = naive_masked_attention(padded, k_global, v_global, key_mask, all_LL, bias_HLL)
    return jnp.concatenate([of_global[:, :count], local[:, count:]], 1)
