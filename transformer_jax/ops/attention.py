"""Scaled dot-product attention (Vaswani et al. 2017, arXiv:1706.03762, eq. 1).

    Attention(Q, K, V) = softmax(Q K^T / sqrt(head_dim) + bias) V

O(L M) time and memory. The scores and the softmax are float32 whatever the inputs.
"""

import jax
import jax.numpy as jnp

from transformer_jax.ops.dropout import dropout
from transformer_jax.ops.masks import MASKED


def attention_weights(
    q_BTHK: jax.Array,
    k_BMHK: jax.Array,
    mask_BHTM: jax.Array,
    bias_HTM: jax.Array | None = None,
) -> jax.Array:
    """softmax(Q K^T / sqrt(K) + bias) over the real keys.

    Args:
        q_BTHK: queries.
        k_BMHK: keys.
        mask_BHTM: boolean, broadcastable to [B, H, T, M].
        bias_HTM: optional additive bias, broadcastable to [B, H, T, M].

    Returns:
        [B, H, T, M] float32; each row sums to 1.
    """
    scale = q_BTHK.shape[-1] ** -0.5
    scores_BHTM = jnp.einsum(
        "bthk,bmhk->bhtm", q_BTHK * scale, k_BMHK, preferred_element_type=jnp.float32
    )
    if bias_HTM is not None:
        scores_BHTM = scores_BHTM + bias_HTM
    return jax.nn.softmax(jnp.where(mask_BHTM, scores_BHTM, MASKED), axis=-1)


def dot_product_attention(
    q_BTHK: jax.Array,
    k_BMHK: jax.Array,
    v_BMHK: jax.Array,
    mask_BHTM: jax.Array,
    bias_HTM: jax.Array | None = None,
    *,
    dropout_rate: float = 0.0,
    dropout_key: jax.Array | None = None,
) -> jax.Array:
    """Attends; returns [B, T, H, K] in the dtype of the values.

    Args:
        q_BTHK: queries.
        k_BMHK: keys.
        v_BMHK: values.
        mask_BHTM: boolean, broadcastable to [B, H, T, M].
        bias_HTM: optional additive bias, broadcastable to [B, H, T, M].
        dropout_rate: applied to the attention weights.
        dropout_key: None means no dropout.
    """
    weights_BHTM = attention_weights(q_BTHK, k_BMHK, mask_BHTM, bias_HTM)
    weights_BHTM = dropout(weights_BHTM, dropout_rate, dropout_key)
    return jnp.einsum(
        "bhtm,bmhk->bthk",
        weights_BHTM.astype(v_BMHK.dtype),
        v_BMHK,
        preferred_element_type=jnp.float32,
    ).astype(v_BMHK.dtype)
