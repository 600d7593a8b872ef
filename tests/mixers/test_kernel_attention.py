"""`linear`, `performer` and readers of the memory: their formulas, and FAVOR+'s features."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import linen as nn

from tests.mixers.formula import assert_same_with_gradients, turned
from tests.reference.naive_attention import (
    naive_elu_features,
    naive_kernel_attention,
    naive_linformer,
    naive_positive_features,
)
from transformer_jax.mixers.full_attention import Full, FullCross
from transformer_jax.mixers.linear import Linear
from transformer_jax.mixers.performer import Performer, PerformerCross
from transformer_jax.mixers.registry import CROSS_MIXERS
from transformer_jax.ops.attention import MASKED
from transformer_jax.ops.kernel_attention import causal_kernel_attention, read_sums, sum_keys
from transformer_jax.ops.random_features import orthogonal_directions
from transformer_jax.testing import mixers as suite
from transformer_jax.testing.layers import noisy

DIRECTIONS = orthogonal_directions(10, suite.D // suite.HEADS, 3)
FEATURES = {
    Linear(chunk=3): naive_elu_features,
    Performer(chunk=3, features=10, seed=3): lambda x: naive_positive_features(x, DIRECTIONS),
}


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("config", FEATURES, ids=lambda config: type(config).__name__)
def test_the_module_is_the_formula_rotated_in_the_numerator_alone(config, causal):
    mixer, variables = turned(config, causal=causal)
    at = jnp.arange(suite.LENGTH)

    def by_hand(bound, x):
        k, v = bound.heads.keys_values(x)
        norm_q, norm_k = map(FEATURES[config], (bound.heads.queries(x), k))
        q, k = bound.position.rotate(norm_q, norm_k, at, at)
        y = naive_kernel_attention(q, k, v, suite.MASK, causal=causal, norm_q=norm_q, norm_k=norm_k)
        return bound.heads.join(y)

    assert_same_with_gradients(mixer, variables, by_hand, suite.inputs(), suite.MASK)
    if causal:
        suite.check_step_equals_parallel(mixer, variables)


def linear(bound, q, k, v, mask):
    features = naive_elu_features(q), naive_elu_features(k)
    return naive_kernel_attention(*features, v, mask, causal=False)


def linformer(bound, q, k, v, mask):
    projection = bound.length_projection
    return naive_linformer(q, k, v, mask, projection.key_projection, projection.value_projection)


@pytest.mark.parametrize(("formula", "options"), [(linear, {}), (linformer, {"rank": 3})])
def test_what_reads_the_memory_is_the_formula(formula, options):
    mixer = CROSS_MIXERS[formula.__name__](**options).build(suite.context(causal=False))
    x, memory = suite.inputs(), jax.random.normal(jax.random.key(7), (3, suite.MEMORY, suite.D))
    mask = np.arange(suite.MEMORY)[None] < np.array([suite.MEMORY, 2, 1])[:, None]
    variables = noisy(nn.unbox(jax.jit(mixer.init)(jax.random.key(1), x, memory, mask)))

    def by_hand(bound):
        qkv = bound.heads.queries(x), *bound.heads.keys_values(memory)
        return bound.heads.join(formula(bound, *qkv, mask))

    got = jax.jit(mixer.apply)(variables, x, memory, mask)
    np.testing.assert_allclose(got, mixer.apply(variables, method=by_hand), atol=2e-5)


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
    mixer, variables = turned(Performer(chunk=3), causal=True)
    x = suite.inputs() * 30.0

    def loss(x):
        return (suite.parallel(mixer, variables, x) * suite.MASK[..., None]).sum()

    value, grad = jax.value_and_grad(loss)(x)
    assert np.isfinite(value) and np.isfinite(grad).all() and np.abs(grad).max() > 0


def arguments():
    """Positive features, values and log scales, with other features for the numerator."""
    draw = np.random.default_rng(0)
    norm_q, norm_k = draw.uniform(0.1, 1.0, size=(2, 2, 11, 2, 3)).astype(np.float32)
    q, k = draw.normal(size=(2, 2, 11, 2, 3)).astype(np.float32)
    v = draw.normal(size=(2, 11, 2, 5)).astype(np.float32)
    return q, k, v, 2 * draw.normal(size=(2, 11, 2)).astype(np.float32), norm_q, norm_k


def test_a_later_key_of_any_size_changes_nothing_before_it():
    q, k, v, log_scale, norm_q, norm_k = arguments()
    run = jax.jit(lambda scale: causal_kernel_attention(q, k, v, scale, 4, norm_q, norm_k))
    # exp(200) is far beyond float32: with one maximum for all keys, these would be all that is
    # left of the sums.
    with_huge = log_scale.copy()
    with_huge[:, 6] = 200.0
    huge = np.asarray(run(with_huge))
    np.testing.assert_array_equal(huge[:, :6], np.asarray(run(log_scale))[:, :6])
    np.testing.assert_allclose(huge[:, 8:] * 0, 0)
    only_it = np.einsum("bhr,bhr->bh", q[:, 8], k[:, 6]) / np.einsum(
        "bhr,bhr->bh", norm_q[:, 8], norm_k[:, 6]
    )
    np.testing.assert_allclose(huge[:, 8], only_it[..., None] * v[:, 6], rtol=1e-4, atol=1e-5)


def test_a_row_that_is_all_padding_gives_finite_gradients():
    q, k, v, log_scale, norm_q, norm_k = arguments()
    nothing = jnp.full_like(log_scale, MASKED)
    for grads in (
        jax.jit(jax.grad(lambda a: causal_kernel_attention(*a[:3], nothing, 4, *a[3:]).sum()))(
            (q, k, v, norm_q, norm_k)
        ),
        jax.jit(jax.grad(lambda a: read_sums(a[0], sum_keys(a[1], a[2], nothing)).sum()))(
            (q, k, v)
        ),
    ):
        assert all(np.isfinite(grad).all() for grad in grads)
