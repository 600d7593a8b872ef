"""Attention with a kernel in place of exp: linear in the length, because (Q K^T) V is
computed as Q (K^T V) (Katharopoulos et al. 2020, arXiv:2006.16236, eq. 4-12).

    y_i = sum_j w_ij v_j / sum_j w_ij,      w_ij = <phi(q_i), phi(k_j)> exp(l_j)

with j over the real keys, in the causal form over those up to i. The log scale l_j keeps the
magnitude of a feature map apart from its features, so that the features stay in a safe range.
All sums are relative to the largest log scale *so far*, as in a streaming softmax (Milakov &
Gimelshein 2018, arXiv:1805.02867). That maximum cancels exactly and does not depend on later
keys. A padded key has the log scale `MASKED`.

The numerator and the normaliser may use different features of the same vectors (`norm_q`,
`norm_k`): rotated features can make w_ij negative, which a normaliser must not be (RoFormer,
Su et al. 2021, arXiv:2104.09864, eq. 19).

O(L R V) time. The causal form works in chunks of C: O(L C) scores and O(L / C) matrices of
R x V. The values may have any width; with the identity as values the output is the attention
matrix.
"""

from collections.abc import Sequence
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import Array

from transformer_jax.ops.attention import MASKED, causal_mask
from transformer_jax.ops.scans import states_before
from transformer_jax.ops.sequences import chunked, unchunked

#: Lower limit of the normaliser, for rows without keys or with underflowed features. Its
#: square, by which the gradient divides, is still a float32.
_TINY = 1e-18


class KernelSums(NamedTuple):
    """Sums over the keys and values so far, in float32; the state of causal attention.

    Attributes:
        value: [B, H, R, V], sum_j exp(l_j - m) phi(k_j) v_j^T.
        key: [B, H, R], sum_j exp(l_j - m) phi(k_j), of the normaliser's features.
        log_scale: [B, H], m: the largest l_j.
    """

    value: Array
    key: Array
    log_scale: Array


def empty_sums(batch: int, heads: int, features: int, width: int) -> KernelSums:
    """The sums over no keys at all."""
    return KernelSums(
        value=jnp.zeros((batch, heads, features, width), jnp.float32),
        key=jnp.zeros((batch, heads, features), jnp.float32),
        log_scale=jnp.full((batch, heads), MASKED, jnp.float32),
    )


def sum_keys(
    k_BMHR: Array, v_BMHV: Array, log_scale_BMH: Array, norm_k_BMHR: Array | None = None
) -> KernelSums:
    """K^T V over the whole length M.

    Args:
        log_scale_BMH: l of each key; `MASKED` at padding.
        norm_k_BMHR: features for the normaliser; `k_BMHR` unless given.
    """
    norm_k_BMHR = k_BMHR if norm_k_BMHR is None else norm_k_BMHR
    top_BH = jax.lax.stop_gradient(log_scale_BMH.max(axis=1))
    weight_BMH = jnp.exp(log_scale_BMH - top_BH[:, None])
    return KernelSums(
        value=jnp.einsum("bmhr,bmh,bmhv->bhrv", k_BMHR, weight_BMH, v_BMHV.astype(jnp.float32)),
        key=jnp.einsum("bmhr,bmh->bhr", norm_k_BMHR, weight_BMH),
        log_scale=top_BH,
    )


def read_sums(q_BTHR: Array, sums: KernelSums, norm_q_BTHR: Array | None = None) -> Array:
    """Q (K^T V), normalised: [B, T, H, V] float32."""
    norm_q_BTHR = q_BTHR if norm_q_BTHR is None else norm_q_BTHR
    y_BTHV = jnp.einsum("bthr,bhrv->bthv", q_BTHR, sums.value)
    return _normalised(y_BTHV, jnp.einsum("bthr,bhr->bth", norm_q_BTHR, sums.key))


def kernel_attention_step(inputs: Sequence[Array], sums: KernelSums) -> tuple[Array, KernelSums]:
    """Adds one key and reads: ([B, H, V] float32, the next sums).

    Args:
        inputs: one position of the arguments of `causal_kernel_attention`, without the chunk.
        sums: so far.
    """
    q_BHR, k_BHR, v_BHV, log_scale_BH, norm_q_BHR, norm_k_BHR = inputs
    top_BH = jnp.maximum(sums.log_scale, log_scale_BH)
    keep_BH1 = jnp.exp(sums.log_scale - top_BH)[..., None]
    weight_BH1 = jnp.exp(log_scale_BH - top_BH)[..., None]
    k_BHR1 = (k_BHR * weight_BH1)[..., None]
    sums = KernelSums(
        value=sums.value * keep_BH1[..., None] + k_BHR1 * v_BHV[..., None, :].astype(jnp.float32),
        key=sums.key * keep_BH1 + norm_k_BHR * weight_BH1,
        log_scale=top_BH,
    )
    norm_q_B1HR = norm_q_BHR[:, None]
    return read_sums(q_BHR[:, None], sums, norm_q_B1HR)[:, 0], sums


def causal_kernel_attention(
    q_BLHR: Array,
    k_BLHR: Array,
    v_BLHV: Array,
    log_scale_BLH: Array,
    chunk: int,
    norm_q_BLHR: Array | None = None,
    norm_k_BLHR: Array | None = None,
) -> Array:
    """Each query reads the keys up to its own position.

    Within a chunk by a C x C matrix of scores, across chunks by the running sums.

    Args:
        log_scale_BLH: l of each key; `MASKED` at padding.
        chunk: C >= 1; it changes the cost and not the result.
        norm_q_BLHR: features for the normaliser; `q_BLHR` unless given.
        norm_k_BLHR: the same for the keys.

    Returns:
        [B, L, H, V] float32.
    """
    batch, length, heads, _ = q_BLHR.shape
    chunk = min(chunk, length)
    norm_q_BLHR = q_BLHR if norm_q_BLHR is None else norm_q_BLHR
    norm_k_BLHR = k_BLHR if norm_k_BLHR is None else norm_k_BLHR
    q, k, v = (chunked(x.astype(jnp.float32), chunk) for x in (q_BLHR, k_BLHR, v_BLHV))
    log_scale_BNCH = chunked(log_scale_BLH, chunk, fill=MASKED)
    # The largest log scale up to each position, without the later ones.
    top = jax.lax.cummax(jax.lax.stop_gradient(log_scale_BNCH).reshape(batch, -1, heads), axis=1)
    top_BNCH = top.reshape(log_scale_BNCH.shape)
    norm_q, norm_k = (chunked(x.astype(jnp.float32), chunk) for x in (norm_q_BLHR, norm_k_BLHR))

    # The sums before each chunk.
    last_top_BNH = top_BNCH[:, :, -1]
    weight_BNCH = jnp.exp(log_scale_BNCH - last_top_BNH[:, :, None])
    own_value_BNHRV = jnp.einsum("bnchr,bnch,bnchv->bnhrv", k, weight_BNCH, v)
    own_key_BNHR = jnp.einsum("bnchr,bnch->bnhr", norm_k, weight_BNCH)
    # Before the first chunk there is no key, so nothing is kept.
    top_before_BNH = jnp.pad(last_top_BNH[:, :-1], ((0, 0), (1, 0), (0, 0)), constant_values=MASKED)
    keep_BNH1 = jnp.exp(top_before_BNH - last_top_BNH)[..., None]
    value_BNHRV = states_before(keep_BNH1[..., None], own_value_BNHRV)
    key_BNHR = states_before(keep_BNH1, own_key_BNHR)

    log_scale_BNH1C = jnp.swapaxes(log_scale_BNCH, 2, 3)[:, :, :, None]
    exponent_BNHCC = log_scale_BNH1C - jnp.swapaxes(top_BNCH, 2, 3)[..., None]
    decay_BNHCC = jnp.exp(jnp.where(causal_mask(chunk), exponent_BNHCC, MASKED))
    past_BNCH = jnp.exp(top_before_BNH[:, :, None] - top_BNCH)
    scores_BNHCC = jnp.einsum("bnchr,bnmhr->bnhcm", q, k) * decay_BNHCC
    y_BNCHV = jnp.einsum("bnhcm,bnmhv->bnchv", scores_BNHCC, v)
    y_BNCHV += jnp.einsum("bnchr,bnhrv->bnchv", q, value_BNHRV) * past_BNCH[..., None]
    # Otherwise the same scores serve both.
    if norm_q_BLHR is not q_BLHR or norm_k_BLHR is not k_BLHR:
        scores_BNHCC = jnp.einsum("bnchr,bnmhr->bnhcm", norm_q, norm_k) * decay_BNHCC
    norm_BNCH = jnp.swapaxes(scores_BNHCC.sum(axis=-1), 2, 3)
    norm_BNCH += jnp.einsum("bnchr,bnhr->bnch", norm_q, key_BNHR) * past_BNCH
    return unchunked(_normalised(y_BNCHV, norm_BNCH), length)


def _normalised(y: Array, norm: Array) -> Array:
    return y / jnp.maximum(norm, _TINY)[..., None]
