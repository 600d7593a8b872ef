"""Token mixing: its formula in both roles, its cache, what it refuses."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

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

    @jax.jit
    def both(params, x):
        def loss(params, x, is_module):
            if is_module:
                y = mixer.apply({"params": params}, x, suite.MASK)
            else:
                y = naive_token_mlp(x, np.asarray(suite.MASK), **params, causal=causal)
            y = jnp.where(suite.MASK[..., None], y, 0.0)
            return (y**2).sum(), y

        gradient = jax.grad(loss, (0, 1), has_aux=True)
        return gradient(params, x, True), gradient(params, x, False)

    (got_grads, got), (want_grads, want) = both(variables["params"], suite.inputs())
    np.testing.assert_allclose(got, want, atol=2e-5)
    for got_grad, want_grad in zip(*map(jax.tree.leaves, (got_grads, want_grads)), strict=True):
        assert jnp.abs(want_grad).max() > 0
        np.testing.assert_allclose(got_grad, want_grad, rtol=1e-4, atol=1e-4)


def test_the_length_of_the_padding_is_invisible():
    mixer, variables = build(causal=False)
    x, mask = suite.inputs(), suite.MASK
    longer = jnp.pad(x, ((0, 0), (0, 2), (0, 0)), constant_values=9.0)
    got = suite.parallel(mixer, variables, longer, jnp.pad(mask, ((0, 0), (0, 2))))
    want = suite.parallel(mixer, variables, x, mask)
    np.testing.assert_allclose(got[:, : suite.LENGTH][mask], want[mask], atol=2e-5)


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
