"""Scaled dot-product attention against three nested loops."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from transformer_jax.ops.attention import attention_mask, attention_weights, dot_product_attention

B, L, H, K = 2, 5, 3, 4
MASK = np.array([[1, 1, 1, 1, 1], [1, 1, 1, 0, 0]], bool)


def by_loops(q, k, v, mask, causal):
    out = np.zeros(q.shape)
    for b in range(B):
        for h in range(H):
            for t in range(L):
                keys = [m for m in range(L) if mask[b, m] and (not causal or m <= t)]
                scores = np.array([q[b, t, h] @ k[b, m, h] / np.sqrt(K) for m in keys])
                weights = np.exp(scores - scores.max())
                weights /= weights.sum()
                out[b, t, h] = sum(w * v[b, m, h] for w, m in zip(weights, keys, strict=True))
    return out


@pytest.mark.parametrize("causal", [False, True])
def test_equals_the_loops(causal):
    q, k, v = jax.random.normal(jax.random.key(0), (3, B, L, H, K))
    got = dot_product_attention(q, k, v, attention_mask(jnp.asarray(MASK), causal=causal))
    want = by_loops(*(np.asarray(x, np.float64) for x in (q, k, v)), MASK, causal)
    np.testing.assert_allclose(got, want, atol=1e-5)


def test_weights_are_a_distribution_over_real_keys_and_float32():
    q, k = jax.random.normal(jax.random.key(0), (2, B, L, H, K)).astype(jnp.bfloat16)
    weights = attention_weights(q, k, attention_mask(jnp.asarray(MASK), causal=False))
    assert weights.dtype == jnp.float32
    np.testing.assert_allclose(weights.sum(-1), 1.0, atol=1e-6)
    assert (np.asarray(weights)[1, :, :, 3:] == 0).all()


def test_a_row_without_any_key_gives_numbers():
    q, k, v = jax.random.normal(jax.random.key(0), (3, B, L, H, K))
    out = dot_product_attention(q, k, v, jnp.zeros((B, 1, 1, L), bool))
    assert np.isfinite(out).all()
