"""Linformer, slot by slot."""

import jax.numpy as jnp


def naive_linformer(q, k, v, mask_BM, key_projection_HMR, value_projection_HMR):
    """q [B, T, H, K], k, v [B, M, H, K], projections [H or 1, max_length, R] -> [B, T, H, K]."""
    batch, length, heads, width = k.shape
    out = []
    for b in range(batch):
        places = [j for j in range(length) if mask_BM[b, j]]
        per_head = []
        for h in range(heads):
            e = key_projection_HMR[h % len(key_projection_HMR)]
            f = value_projection_HMR[h % len(value_projection_HMR)]
            keys = sum(e[j][:, None] * k[b, j, h][None] for j in places)  # [R, K]
            values = sum(f[j][:, None] * v[b, j, h][None] for j in places)
            scores = jnp.exp(q[b, :, h] @ keys.T / width**0.5)
            per_head.append(scores / scores.sum(-1, keepdims=True) @ values)
        out.append(jnp.stack(per_head, axis=1))
    return jnp.stack(out)
