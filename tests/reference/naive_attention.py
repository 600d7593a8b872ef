"""Kinds of attention with their L x L matrices, masks and slots written out."""

import jax
import jax.numpy as jnp
import numpy as np


def naive_kernel_attention(q, k, v, mask_BM, *, causal, norm_q=None, norm_k=None):
    """q [B, T, H, R], k [B, M, H, R] features, v [B, M, H, V] -> [B, T, H, V]."""
    norm_q, norm_k = (q if norm_q is None else norm_q), (k if norm_k is None else norm_k)
    weights = jnp.einsum("bthr,bmhr->bhtm", q, k)
    norms = jnp.einsum("bthr,bmhr->bhtm", norm_q, norm_k)
    allowed = mask_BM[:, None, None, :]
    if causal:
        allowed = allowed & np.tri(q.shape[1], k.shape[1], dtype=bool)
    weights, norms = (jnp.where(allowed, x, 0.0) for x in (weights, norms))
    y = jnp.einsum("bhtm,bmhv->bthv", weights, v)
    norm = jnp.swapaxes(norms.sum(-1), 1, 2)[..., None]
    return y / jnp.where(norm > 0, norm, 1.0)


def naive_elu_features(x):
    """elu(x) + 1 of each number."""
    return jnp.where(x > 0, x + 1.0, jnp.exp(jnp.minimum(x, 0.0)))


def naive_positive_features(x, directions_RK):
    """exp(<w, x'> - |x'|^2 / 2) with x' = x / K^(1/4), unscaled: for small x only."""
    x = x / x.shape[-1] ** 0.25
    return jnp.exp(jnp.einsum("...k,rk->...r", x, directions_RK) - (x**2).sum(-1)[..., None] / 2)


def naive_linformer(q, k, v, mask_BM, key_projection_HMR, value_projection_HMR):
    """q [B, T, H, K], k, v [B, M, H, K], projections [H or 1, max_length, R] -> [B, T, H, K]."""

    def slots(x, projection):
        rows = jnp.where(jnp.asarray(mask_BM)[..., None, None], x, 0.0)
        every = jnp.repeat(projection[:, : x.shape[1]], x.shape[2] // len(projection), axis=0)
        return jnp.einsum("hmr,bmhk->brhk", every, rows)

    keys, values = slots(k, key_projection_HMR), slots(v, value_projection_HMR)
    scores = jnp.einsum("bthk,brhk->bhtr", q, keys) / q.shape[-1] ** 0.5
    return jnp.einsum("bhtr,brhk->bthk", jax.nn.softmax(scores), values)


def naive_lsh_keys(bucket_L, mask_L, chunk, causal):
    """[L, L], True where a query attends to a key in one round of one head, except itself."""
    length = len(bucket_L)
    chunk = min(chunk, length)
    keys = np.zeros((length, length), bool)
    real = [j for j in range(length) if mask_L[j]]
    place = {j: s for s, j in enumerate(sorted(real, key=lambda j: (bucket_L[j], j)))}
    for i in real:
        others = [j for j in real if bucket_L[j] == bucket_L[i] and j != i]
        if causal:
            others = [j for j in others if j < i][-chunk:]
        else:
            others = [j for j in others if place[i] // chunk - place[j] // chunk in (0, 1)]
        keys[i, others] = True
    return keys


def naive_lsh_attention(q, k, v, bucket_BLHJ, mask_BL, chunk, *, causal):
    """As `ops.lsh_attention.lsh_attention`; `bucket_BLHJ` and `mask_BL` are NumPy arrays."""
    batch, length, heads, rounds = bucket_BLHJ.shape
    allowed = np.zeros((batch, heads, rounds, length, length), bool)
    for b, h, r in np.ndindex(batch, heads, rounds):
        allowed[b, h, r] = naive_lsh_keys(bucket_BLHJ[b, :, h, r], mask_BL[b], chunk, causal)
    scores = jnp.einsum("blhk,bmhk->bhlm", q, k)[:, :, None]
    scores = jnp.where(allowed, scores, -jnp.inf)
    scores = jnp.where(np.eye(length, dtype=bool), -1e5, scores)
    z = jax.nn.logsumexp(scores, axis=-1)  # [B, H, J, L]
    y = jnp.einsum("bhjlm,bmhv->bhjlv", jnp.exp(scores - z[..., None]), v)
    # Not exp(z - logsumexp(z)): if the token finds only itself in all rounds, z is -1e5, and
    # float32 cannot represent log(rounds) added to it.
    return jnp.swapaxes((jax.nn.softmax(z, axis=2)[..., None] * y).sum(2), 1, 2)


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
