"""Scaled dot-product attention against its formula."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tests.reference.naive_masked_attention import naive_masked_attention
from transformer_jax.ops.attention import attention_mask, attention_weights, dot_product_attention

B, L, H, K = 2, 5, 3, 4
MASK = np.array([[1, 1, 1, 1, 1], [1, 1, 1, 0, 0]], bool)


@pytest.mark.parametrize("causal", [False, True])
def test_it_is_the_formula(causal):
    q, k, v = jax.random.normal(jax.random.key(0), (3, B, L, H, K))
    got = dot_product_attention(q, k, v, attention_mask(jnp.asarray(MASK), causal=causal))
    allowed = np.tri(L, dtype=bool) if causal else np.ones((L, L), bool)
    want = naive_masked_attention(q, k, v, MASK, allowed)
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
