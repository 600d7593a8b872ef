"""`linear` and `linformer` as cross-attention against their formulas."""

import jax
import numpy as np
import pytest
from flax import linen as nn

from tests.reference.naive_kernel_attention import naive_elu_features, naive_kernel_attention
from tests.reference.naive_linformer import naive_linformer
from transformer_jax.mixers.registry import CROSS_MIXERS
from transformer_jax.testing import mixers as suite
from transformer_jax.testing.layers import noisy


def linear(bound, q, k, v, mask):
    features = naive_elu_features(q), naive_elu_features(k)
    return naive_kernel_attention(*features, v, mask, causal=False)


def linformer(bound, q, k, v, mask):
    projection = bound.length_projection
    return naive_linformer(q, k, v, mask, projection.key_projection, projection.value_projection)


@pytest.mark.parametrize(("formula", "options"), [(linear, {}), (linformer, {"rank": 3})])
def test_it_is_the_formula(formula, options):
    mixer = CROSS_MIXERS[formula.__name__](**options).build(suite.context(causal=False))
    x, memory = suite.inputs(), jax.random.normal(jax.random.key(7), (3, suite.MEMORY, suite.D))
    mask = np.arange(suite.MEMORY)[None] < np.array([suite.MEMORY, 2, 1])[:, None]
    variables = noisy(nn.unbox(jax.jit(mixer.init)(jax.random.key(1), x, memory, mask)))

    def by_hand(bound):
        qkv = bound.heads.queries(x), *bound.heads.keys_values(memory)
        return bound.heads.join(formula(bound, *qkv, mask))

    got = jax.jit(mixer.apply)(variables, x, memory, mask)
    np.testing.assert_allclose(got, mixer.apply(variables, method=by_hand), atol=2e-5)
