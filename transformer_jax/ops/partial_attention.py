"""Softmax attention over a subset of the keys; the results of disjoint subsets can be joined.

Let a query's keys be split into disjoint sets P_1, P_2, ... with scores s_j. Then

    lse_p = log sum_{j in P_p} exp(s_j)
    y_p   = sum_{j in P_p} exp(s_j - lse_p) v_j
    y     = sum_p softmax_p(lse_p) y_p

is the attention over their union, whatever the split (Rabe and Staats 2021, arXiv:2112.05682,
section 2; Milakov and Gimelshein 2018, arXiv:1805.02867). A sparse pattern that is the union of
two shapes (a window and some global tokens) computes each in its own layout and joins them.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import Array

from transformer_jax.ops.attention import MASKED, QKV, Hooks
from transformer_jax.ops.sums import einsum_32


class Partial(NamedTuple):
    """Attention over some keys, float32: values [B, T, H, V] and log weights [B, T, H]."""

    value: Array
    log_weight: Array


def attend(q: Array, k: Array, v: Array, mask: Array, bias: Array | None, hooks: Hooks) -> Partial:
    """Attention with any leading axes, which include the heads.

    Args:
        q: queries [..., T, K].
        k: keys [..., M, K].
        v: values [..., M, V].
        mask: boolean, broadcastable to [..., T, M].
        bias: broadcastable to [..., T, M], or None.
        hooks: the scale and the dropout of the weights; its bias is not used.

    Returns:
        float32 values [..., T, V] and log weights [..., T]. Where a query has no key, the
        value is finite and the log weight about -1e30, so that it has no share in a `join`.
    """
    scores = einsum_32("...tk,...mk->...tm", q * hooks.scale_of(q), k)
    if bias is not None:
        scores = scores + bias
    scores = jnp.where(mask, scores, MASKED)
    top = jax.lax.stop_gradient(scores.max(axis=-1, keepdims=True))
    exponentials = jnp.exp(scores - top)
    total = exponentials.sum(axis=-1, keepdims=True)
    weights = hooks.drop(exponentials / total)
    value = einsum_32("...tm,...mv->...tv", weights.astype(v.dtype), v)
    return Partial(value, (top + jnp.log(total))[..., 0])


def dense_part(qkv: QKV, key_mask_BM: Array, hooks: Hooks) -> Partial:
    """Queries at 0 ... T - 1 read all real keys at 0 ... M - 1: O(T M), for few of either."""
    q_BHTK, k_BHMK, v_BHMV = (jnp.swapaxes(x, 1, 2) for x in qkv)
    bias_1HTM = None
    if hooks.bias is not None:
        bias_1HTM = hooks.bias(jnp.arange(q_BHTK.shape[2]), jnp.arange(k_BHMK.shape[2]))[None]
    part = attend(q_BHTK, k_BHMK, v_BHMV, key_mask_BM[:, None, None, :], bias_1HTM, hooks)
    return Partial(*(jnp.swapaxes(x, 1, 2) for x in part))


def join(*parts: Partial) -> Array:
    """Attention over the union of the parts' keys, which must be disjoint: [B, T, H, V]."""
    weights = jax.nn.softmax(jnp.stack([part.log_weight for part in parts]), axis=0)
    return sum(
        (weight[..., None] * part.value for weight, part in zip(weights, parts, strict=True)),
        start=jnp.zeros((), jnp.float32),
    )
