"""Window and global tokens as one L x L mask each for local and global queries."""

import jax.numpy as jnp

from tests.reference.naive_masked_attention import naive_masked_attention
from tests.reference.naive_window import naive_window_mask


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
