"""Dropout of attention weights, in every mixer that has it."""

from dataclasses import fields, replace

import jax
import numpy as np
import pytest

from tests.contract.small_options import small_mixer
from transformer_jax.mixers.registry import MIXERS
from transformer_jax.testing import mixers as suite

DROPPING = [
    name for name, kind in MIXERS.items() if "dropout_rate" in {each.name for each in fields(kind)}
]


@pytest.mark.parametrize(
    ("name", "options"), [*((name, {}) for name in DROPPING), ("full", {"implementation": "fused"})]
)
def test_weights_are_dropped_by_the_key_and_only_with_one(name, options):
    causal = "decoder" not in MIXERS[name].refuses
    config = replace(small_mixer(name, causal=causal), dropout_rate=0.5, **options)
    mixer = config.build(suite.context(causal=causal), suite.position(causal=causal))
    variables, x = suite.initialised(mixer), suite.inputs()

    @jax.jit
    def noisy(key):
        return mixer.apply(variables, x, suite.MASK, rngs={"dropout": key})

    one, again, other = (noisy(jax.random.key(seed)) for seed in (0, 0, 1))
    np.testing.assert_array_equal(one, again)
    for different in (other, suite.parallel(mixer, variables, x)):
        assert not np.allclose(one, different, atol=1e-3)
