"""Scaled dot-product attention (Vaswani et al. 2017, arXiv:1706.03762, eq. 1).

    Attention(Q, K, V) = softmax(Q K^T / sqrt(head_dim) + bias) V

O(L M) time and memory. Scores and softmax are float32 whatever the inputs. Keys and values
may have fewer heads than the queries, G below; each is then shared by a group of neighbouring
query heads (Ainslie et al. 2023, arXiv:2305.13245).
"""

from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import Array

from transformer_jax.ops.dropout import dropout
from transformer_jax.ops.sums import einsum, softmax

#: Added to masked scores. Finite, so that a row without any key (one that only pads a batch)
#: gives numbers and not NaN.
MASKED = -1e30

#: Queries [B, T, H, K], keys [B, M, G, K] and values [B, M, G, V] of any width.
QKV = tuple[Array, Array, Array]

#: (query positions [T], key positions [M]) -> additive bias [H, T, M].
Bias = Callable[[Array, Array], Array]


class Hooks(NamedTuple):
    """What is applied to scores and weights besides the mask.

    Attributes:
        bias: added to the scores; evaluated only where scores are computed.
        dropout_rate: of the attention weights.
        batch_axis: of the attention weights.
        scale: of the product of queries and keys; None: 1 / sqrt(K).
        sink_H: the score of one more key without a value, in plain attention and to a cache alone.
    """

    bias: Bias | None = None
    dropout_rate: float = 0.0
    dropout_key: Array | None = None
    batch_axis: int = 0
    scale: float | None = None
    sink_H: Array | None = None

    def scale_of(self, q: Array) -> float:
        """The scale of queries [..., K]."""
        return float(q.shape[-1] ** -0.5) if self.scale is None else self.scale

    def drop(self, weights: Array) -> Array:
        """The attention weights after dropout."""
        rate, key = self.dropout_rate, self.dropout_key
        return dropout(weights, rate, key, batch_axis=self.batch_axis)

    def part(self, index: int | Array) -> "Hooks":
        """These, with a dropout key of their own for one of several parts."""
        if self.dropout_key is None:
            return self
        return self._replace(dropout_key=jax.random.fold_in(self.dropout_key, index))


#: No bias and no dropout.
NO_HOOKS = Hooks()


def causal_mask(length: int) -> Array:
    """[L, L], True where key position <= query position."""
    return jnp.tril(jnp.ones((length, length), bool))


def attention_mask(key_mask_BM: Array, *, causal: bool) -> Array:
    """[B, 1, L or 1, M] for self-attention over real keys, optionally causal."""
    mask = key_mask_BM[:, None, None, :]
    if causal:
        mask = mask & causal_mask(key_mask_BM.shape[-1])[None, None]
    return mask


def attention_scores(q_BTHK: Array, k_BMGK: Array, hooks: Hooks = NO_HOOKS) -> Array:
    """Q K^T * scale, [B, H, T, M] float32."""
    batch, length, heads, width = q_BTHK.shape
    groups = k_BMGK.shape[2]
    q_BTHK = q_BTHK * hooks.scale_of(q_BTHK)
    # The axes of the result are in the order of the operands. With another order XLA swaps the
    # operands, and on a CPU the product of a few queries takes up to three times as long.
    q_BTGRK = q_BTHK.reshape(batch, length, groups, heads // groups, width)
    scores_BGTRM = einsum("btgrk,bmgk->bgtrm", q_BTGRK, k_BMGK)
    return scores_BGTRM.swapaxes(2, 3).reshape(batch, heads, length, -1)


def weighted_values(weights_BHTM: Array, v_BMGK: Array) -> Array:
    """sum_m weights * values, [B, T, H, K] float32."""
    batch, heads, length, slots = weights_BHTM.shape
    groups, width = v_BMGK.shape[2:]
    weights_BHTM = weights_BHTM.astype(v_BMGK.dtype)
    weights_BGRTM = weights_BHTM.reshape(batch, groups, heads // groups, length, slots)
    # In the order of the operands, as in `attention_scores`.
    y_BGRTK = einsum("bgrtm,bmgk->bgrtk", weights_BGRTM, v_BMGK)
    return y_BGRTK.reshape(batch, heads, length, width).swapaxes(1, 2)


def attention_weights(
    q_BTHK: Array, k_BMGK: Array, mask: Array, bias_HTM: Array | None, hooks: Hooks = NO_HOOKS
) -> Array:
    """softmax(Q K^T * scale + bias) over the keys where the mask is True.

    Args:
        k_BMGK: keys, with H heads or a divisor of H.
        mask: boolean, broadcastable to [B, H, T, M].
        bias_HTM: added to the scores; that of the hooks is not used.
        hooks: the scale, and the sink.

    Returns:
        [B, H, T, M] float32; each row sums to 1, with the weight of the sink.
    """
    scores_BHTM = attention_scores(q_BTHK, k_BMGK, hooks)
    if bias_HTM is not None:
        scores_BHTM = scores_BHTM + bias_HTM[None]
    scores_BHTM = jnp.where(mask, scores_BHTM, MASKED)
    if hooks.sink_H is not None:
        sinks = jnp.broadcast_to(hooks.sink_H[None, :, None, None], (*scores_BHTM.shape[:-1], 1))
        return softmax(jnp.concatenate([scores_BHTM, sinks], axis=-1))[..., :-1]
    return softmax(scores_BHTM)


def dot_product_attention(
    qkv: QKV, mask: Array, bias_HTM: Array | None = None, hooks: Hooks = NO_HOOKS
) -> Array:
    """[B, T, H, V] in the dtype of the values.

    Args:
        qkv: queries, keys and values; number of heads and width of the values may differ from those
            of the keys.
        mask: as in `attention_weights`.
        bias_HTM: added to the scores.
        hooks: the scale, the sink and the dropout of the weights; its bias is not used.
    """
    q_BTHK, k_BMGK, v_BMJV = qkv
    weights_BHTM = attention_weights(q_BTHK, k_BMGK, mask, bias_HTM, hooks)
    return weighted_values(hooks.drop(weights_BHTM), v_BMJV).astype(v_BMJV.dtype)
