"""Kernel attention with its L x L matrix written out, in NumPy or jax."""

import jax.numpy as jnp
import numpy as np


def naive_kernel_attention(
    q, k, v, mask_BM, *, causal, log_scale_BMH=None, norm_q=None, norm_k=None
):
    """q [B, T, H, R], k [B, M, H, R] features, v [B, M, H, V] -> [B, T, H, V]."""
    norm_q, norm_k = (q if norm_q is None else norm_q), (k if norm_k is None else norm_k)
    weights = jnp.einsum("bthr,bmhr->bhtm", q, k)
    norms = jnp.einsum("bthr,bmhr->bhtm", norm_q, norm_k)
    allowed = mask_BM[:, None, None, :]
    if causal:
        allowed = allowed & np.tri(q.shape[1], k.shape[1], dtype=bool)
    scale = 1.0
    if log_scale_BMH is not None:
        scale = jnp.exp(jnp.swapaxes(log_scale_BMH, 1, 2))[:, :, None, :]
    weights, norms = (jnp.where(allowed, x * scale, 0.0) for x in (weights, norms))
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
