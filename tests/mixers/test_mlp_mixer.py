"""Token mixing: its formula in both roles, its cache, what it refuses."""

import dataclasses

import jax.numpy as jnp
import numpy as np
import pytest

from tests.mixers.formula import assert_same_with_gradients
from tests.reference.naive_mlp_mixer import naive_token_mlp
from transformer_jax.errors import UserError
from transformer_jax.mixers.mlp_mixer import MlpMixer
from transformer_jax.testing import mixers as suite


def build(*, causal, max_length=9, **options):
    context = dataclasses.replace(suite.context(causal=causal), max_length=max_length)
    mixer = MlpMixer(**options).build(context, suite.position(causal=causal))
    return mixer, suite.initialised(mixer)


@pytest.mark.parametrize("causal", [False, True])
def test_the_module_is_the_formula_up_to_its_longest_sequence(causal):
    mixer, variables = build(causal=causal, hidden=5)

    def by_hand(bound, x):
        params = bound.variables["params"]
        return naive_token_mlp(x, np.asarray(suite.MASK), **params, causal=causal)

    assert_same_with_gradients(mixer, variables, by_hand, suite.inputs(), suite.MASK)


def test_decoding_may_stop_before_the_longest_sequence():
    # The cache is shorter than the kernels: LENGTH of 9.
    suite.check_step_equals_parallel(*build(causal=True))


def test_it_says_what_it_cannot_do():
    mixer, variables = build(causal=True, max_length=suite.LENGTH)
    longer = jnp.zeros((1, suite.LENGTH + 1, suite.D))
    with pytest.raises(UserError, match="at most model.max_length=7 positions, got 8"):
        suite.parallel(mixer, variables, longer, jnp.ones(longer.shape[:2], bool))
    with pytest.raises(UserError, match="at most model.max_length=7 positions, got 8"):
        mixer.apply(variables, 1, suite.LENGTH + 1, method="init_state")
