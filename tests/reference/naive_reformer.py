"""LSH attention with each query's set of keys written out as a row of an L x L matrix."""

import jax
import jax.numpy as jnp
import numpy as np


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
