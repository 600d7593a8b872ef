"""Attention within buckets of a locality-sensitive hash (Kitaev, Kaiser & Levskaya 2020,
arXiv:2001.04451, section 2).

    h(x) = argmax([x R; -x R])                                  (angular LSH, section 2)
    y_i = sum_r softmax_r(z_i^r) sum_{j in P_i^r} exp(q_i k_j - z_i^r) v_j
    z_i^r = log sum_{j in P_i^r} exp(q_i k_j)

P_i^r holds keys of query i's bucket in hashing round r. A key that is in several rounds counts
once in each. The paper (appendix A) takes the union of the rounds instead: it divides
exp(q_i k_j) by the number N_ij of rounds that contain j. With one round, or one bucket, the two
are the same.

The tokens are sorted by (bucket, position) and cut into chunks of C. Without a causal mask P_i
is that of the paper's batching: the keys of the same bucket in i's chunk and the chunk before.

With a causal mask the paper's chunks depend on the future: a later token that sorts before i
shifts the border of i's chunk. Here a causal P_i is i and the C keys before it *in its bucket*,
whatever the other buckets hold. After sorting these are in i's chunk and the one before, so the
blocks and the cost are the same. A query attends to itself only where its bucket has no other
key for it. Padding sorts last, into a bucket of its own.
"""

from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from transformer_jax.ops.attention import MASKED, QKV
from transformer_jax.ops.sequences import chunked, pad_to_multiple
from transformer_jax.ops.sums import einsum_32

Drop = Callable[[Array], Array]

#: The score of a token with itself: below all others and above masked ones. It replaces the
#: product so that shared queries and keys do not attend to themselves.
SELF_SCORE = -1e5


def unit_keys(qk: Array) -> Array:
    """Shared queries-keys [..., K] as keys: float32, of norm 1 (section 2, shared-QK)."""
    qk = qk.astype(jnp.float32)
    mean_square = (qk * qk).mean(axis=-1, keepdims=True)
    return qk * jax.lax.rsqrt(mean_square + 1e-6) * qk.shape[-1] ** -0.5


def hash_rotations(factors: tuple[int, ...], rounds: int, width: int, seed: int) -> np.ndarray:
    """Gaussian projections [rounds, K, sum(factors) / 2], constants of the seed."""
    rng = np.random.default_rng(seed)
    return rng.standard_normal((rounds, width, sum(factors) // 2)).astype(np.float32)


def hash_buckets(qk: Array, rotations_JKN: np.ndarray | Array, factors: tuple[int, ...]) -> Array:
    """The bucket of each vector in each round.

    The number of buckets is the product of the factors, which must be even; the cost is their
    sum (as in the authors' code: a number in mixed radix). No factors: bucket 0.

    Args:
        rotations_JKN: from `hash_rotations`.
        factors: sizes whose product is the number of buckets.

    Returns:
        int32 [..., J] in [0, prod(factors)). Rounding can change the bucket of a vector on the
        border of two buckets.
    """
    qk = jax.lax.stop_gradient(qk.astype(jnp.float32))
    rotated = jnp.einsum("...k,jkn->...jn", qk, rotations_JKN)
    bucket = jnp.zeros(rotated.shape[:-1], jnp.int32)
    start, radix = 0, 1
    for factor in factors:
        part = rotated[..., start : start + factor // 2]
        digit = jnp.argmax(jnp.concatenate([part, -part], axis=-1), axis=-1)
        bucket = bucket + radix * digit.astype(jnp.int32)
        start, radix = start + factor // 2, radix * factor
    return bucket


def lsh_attention(
    qkv: QKV, bucket_BLHJ: Array, mask_BL: Array, chunk: int, drop: Drop, *, causal: bool
) -> Array:
    """Attends within the buckets of all rounds: O(L log L) time, O(L C) scores per round.

    Args:
        qkv: keys are of norm 1.
        bucket_BLHJ: int32, the bucket of each token and head in each of J rounds.
        chunk: C, the length of a chunk of sorted tokens; if causal, also the number of past
            keys that a query reads.
        drop: dropout of the attention weights, [B, H, J, N, C, 2 C] of N chunks.
        causal: whether a query reads only keys before it.

    Returns:
        [B, L, H, V] float32.
    """
    length = mask_BL.shape[1]
    chunk = min(chunk, length)
    # P is the length with padding.
    q_BHPK, k_BHPK, v_BHPV = (jnp.swapaxes(pad_to_multiple(x, chunk), 1, 2) for x in qkv)
    last_bucket = jnp.iinfo(jnp.int32).max  # of padding
    bucket_BLHJ = jnp.where(mask_BL[..., None, None], bucket_BLHJ, last_bucket)
    bucket_BHJP = jnp.moveaxis(pad_to_multiple(bucket_BLHJ, chunk, fill=last_bucket), 1, 3)
    # A stable sort keeps the order of positions within each bucket.
    order_BHJP = jnp.argsort(bucket_BHJP, axis=-1, stable=True)
    bucket_BHJNC = chunked(jnp.take_along_axis(bucket_BHJP, order_BHJP, axis=-1), chunk, axis=3)
    q, k, v = (
        chunked(jnp.take_along_axis(x[:, :, None], order_BHJP[..., None], axis=3), chunk, axis=3)
        for x in (q_BHPK, k_BHPK, v_BHPV)
    )
    scores_BHJNCM = einsum_32("bhjnck,bhjnmk->bhjncm", q, _with_previous(k))
    keys_bucket_BHJNM = _with_previous(bucket_BHJNC)
    is_same_bucket = bucket_BHJNC[..., :, None] == keys_bucket_BHJNM[..., None, :]
    scores_BHJNCM = _masked(scores_BHJNCM, is_same_bucket, chunk, causal)
    z_BHJNC = jax.nn.logsumexp(scores_BHJNCM, axis=-1)
    weights_BHJNCM = drop(jnp.exp(scores_BHJNCM - z_BHJNC[..., None])).astype(v.dtype)
    v_BHJNMV = _with_previous(v)
    y_BHJNCV = einsum_32("bhjncm,bhjnmv->bhjncv", weights_BHJNCM, v_BHJNMV)
    unsort_BHJP = jnp.argsort(order_BHJP, axis=-1)
    y_BHJPV = y_BHJNCV.reshape(*order_BHJP.shape, -1)
    y_BHJPV = jnp.take_along_axis(y_BHJPV, unsort_BHJP[..., None], axis=3)
    z_BHJP = jnp.take_along_axis(z_BHJNC.reshape(order_BHJP.shape), unsort_BHJP, axis=-1)
    return jnp.swapaxes(_over_rounds(y_BHJPV, z_BHJP), 1, 2)[:, :length]


def lsh_attention_step(
    q_BHK: Array, v_BHV: Array, past_k_BHJCK: Array, past_v_BHJCV: Array, is_past_BHJC: Array
) -> Array:
    """One query against itself and at most C keys of its bucket in each round.

    Args:
        past_k_BHJCK: the last C keys of its bucket, in any order.
        is_past_BHJC: False where the bucket has had fewer than C keys.

    Returns:
        [B, H, V] float32.
    """
    scores_BHJC = einsum_32("bhk,bhjck->bhjc", q_BHK, past_k_BHJCK)
    scores_BHJC = jnp.where(is_past_BHJC, scores_BHJC, MASKED)
    own_BHJ1 = jnp.full((*scores_BHJC.shape[:-1], 1), SELF_SCORE, jnp.float32)
    scores_BHJM = jnp.concatenate([scores_BHJC, own_BHJ1], axis=-1)
    z_BHJ = jax.nn.logsumexp(scores_BHJM, axis=-1)
    weights_BHJM = jnp.exp(scores_BHJM - z_BHJ[..., None]).astype(v_BHV.dtype)
    y_BHJV = einsum_32("bhjc,bhjcv->bhjv", weights_BHJM[..., :-1], past_v_BHJCV)
    y_BHJV += weights_BHJM[..., -1:] * v_BHV[:, :, None]
    return _over_rounds(y_BHJV[..., None, :], z_BHJ[..., None])[:, :, 0]


def _masked(scores_BHJNCM: Array, is_same_bucket: Array, chunk: int, causal: bool) -> Array:
    # Indices after sorting, relative to the start of the query's chunk.
    query_1C1 = jnp.arange(chunk)[None, :, None]
    key_11M = jnp.arange(-chunk, chunk)[None, None]
    # There is no chunk before the first one.
    is_allowed = (jnp.arange(scores_BHJNCM.shape[3])[:, None, None] > 0) | (key_11M >= 0)
    if causal:
        is_allowed &= (key_11M <= query_1C1) & (key_11M >= query_1C1 - chunk)
    is_allowed = is_same_bucket & is_allowed[None, None, None]
    scores_BHJNCM = jnp.where(is_allowed, scores_BHJNCM, MASKED)
    return jnp.where((key_11M == query_1C1)[None, None, None], SELF_SCORE, scores_BHJNCM)


def _over_rounds(y_BHJLV: Array, z_BHJL: Array) -> Array:
    """[B, H, L, V]: the rounds, weighted by softmax of their log weights z."""
    share_BHJL = jax.nn.softmax(z_BHJL, axis=2)
    return (y_BHJLV * share_BHJL[..., None]).sum(axis=2)


def _with_previous(x: Array) -> Array:
    """Each chunk with the one before it: [B, H, J, N, C, ...] -> [B, H, J, N, 2 C, ...]."""
    return jnp.concatenate([jnp.roll(x, 1, axis=3), x], axis=4)
