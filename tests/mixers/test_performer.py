"""FAVOR+: its formula, its features, and that it tends to softmax attention."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tests.mixers.kernel_cases import assert_module_is_the_formula, build
from tests.reference.naive_kernel_attention import naive_positive_features
from transformer_jax.mixers.full_attention import Full, FullCross
from transformer_jax.mixers.performer import Performer, PerformerCross
from transformer_jax.ops.random_features import orthogonal_directions
from transformer_jax.testing import mixers as suite


@pytest.mark.parametrize("causal", [False, True])
def test_the_module_is_the_formula_rotated_in_the_numerator_alone(causal):
    mixer, variables = build("performer", causal=causal, chunk=3, features=10, seed=3)
    directions = orthogonal_directions(10, suite.D // suite.HEADS, 3)
    assert_module_is_the_formula(
        mixer, variables, lambda x: naive_positive_features(x, directions), causal=causal
    )


def test_steps_equal_the_chunked_form_with_rotation():
    suite.check_step_equals_parallel(*build("performer", causal=True, chunk=3, features=10))


def test_directions_are_orthogonal_gaussians_of_the_seed():
    directions = orthogonal_directions(4000, 8, 0)
    block = directions[:8] / np.linalg.norm(directions[:8], axis=1, keepdims=True)
    np.testing.assert_allclose(block @ block.T, np.eye(8), atol=1e-6)
    # First and second moments of N(0, 1), and the variance of a chi-squared norm.
    np.testing.assert_allclose(directions.mean(0), 0, atol=0.05)
    np.testing.assert_allclose(directions.T @ directions / 4000, np.eye(8), atol=0.1)
    np.testing.assert_allclose((directions**2).sum(1).var(), 2 * 8, rtol=0.1)
    assert (orthogonal_directions(16, 8, 0) != orthogonal_directions(16, 8, 1)).all()


def against_softmax(features, seed, *, role):
    """Root mean square of (performer - full attention), on the same parameters."""
    causal = role == "decoder"
    # Short queries and keys: the variance of the features grows exponentially with their norm.
    context, x = suite.context(causal=causal), 0.5 * suite.inputs()
    if role == "cross":
        full = FullCross().build(context)
        mixer = PerformerCross(features, seed).build(context)
        inputs = x, x, suite.MASK
    else:
        position = suite.position(causal=causal)
        full = Full().build(context, position)
        mixer = Performer(features=features, seed=seed).build(context, position)
        inputs = x, suite.MASK
    variables = full.init(jax.random.key(1), *inputs)
    want, got = (jax.jit(each.apply)(variables, *inputs) for each in (full, mixer))
    return float(jnp.sqrt(((got - want)[suite.MASK] ** 2).mean() / (want[suite.MASK] ** 2).mean()))


@pytest.mark.parametrize("role", ["encoder", "decoder", "cross"])
def test_it_tends_to_softmax_attention_as_features_grow(role):
    few, many = (
        np.mean([against_softmax(features, seed, role=role) for seed in range(2)])
        for features in (32, 2048)
    )
    # 64 times the features: an eighth of the error, up to noise.
    assert many < few / 4, (few, many)
    assert many < 0.03, many


def test_long_queries_and_keys_stay_in_range():
    mixer, variables = build("performer", causal=True, turned=False, chunk=3)
    x = suite.inputs() * 30.0

    def loss(x):
        return (suite.parallel(mixer, variables, x) * suite.MASK[..., None]).sum()

    value, grad = jax.value_and_grad(loss)(x)
    assert np.isfinite(value) and np.isfinite(grad).all() and np.abs(grad).max() > 0
