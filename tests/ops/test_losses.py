"""The fused loss against the formula written out with full logits."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import AbstractMesh

from transformer_jax.ops import losses
from transformer_jax.ops.sharding import layout

B, T, D, V = 6, 5, 16, 37


@pytest.fixture
def arrays():
    keys = jax.random.split(jax.random.key(0), 4)
    hidden = jax.random.normal(keys[0], (B, T, D))
    kernel = jax.random.normal(keys[1], (D, V)) * 0.3
    labels = jax.random.randint(keys[2], (B, T), 0, V)
    weights = (jax.random.uniform(keys[3], (B, T)) > 0.3).astype(jnp.float32)
    return hidden, kernel, labels, weights


def naive(hidden, kernel, labels, weights, smoothing, bias=0.0):
    log_probs = jax.nn.log_softmax(hidden @ kernel + bias)
    target = (1 - smoothing) * jax.nn.one_hot(labels, V) + smoothing / V
    return -((target * log_probs).sum(-1) * weights).sum()


def assert_same(fused, expected, *arrays, rtol=1e-7, atol=1e-5):
    """Of both functions the value and the gradients, which have these tolerances."""
    places = tuple(range(len(arrays)))
    (value, grads), (want, want_grads) = (
        jax.jit(jax.value_and_grad(function, places))(*arrays) for function in (fused, expected)
    )
    np.testing.assert_allclose(value, want, rtol=1e-5)
    for got, wanted in zip(grads, want_grads, strict=True):
        np.testing.assert_allclose(got, wanted, rtol=rtol, atol=atol)


# Parts of the 30 tokens that come out even, and parts that must be filled up.
@pytest.mark.parametrize("smoothing", [0.0, 0.1])
@pytest.mark.parametrize("shards", [1, 3, 4])  # four devices cannot share six rows
@pytest.mark.parametrize("chunk_tokens", [0.5, 4, 7, 15, 30])
def test_equals_the_formula_in_value_and_gradient(
    arrays, smoothing, shards, chunk_tokens, monkeypatch
):
    monkeypatch.setitem(losses._FORMS, "cpu", losses._Form(int(chunk_tokens * V)))
    hidden, kernel, labels, weights = arrays
    mesh, bias = AbstractMesh((shards,), ("data",)), jnp.linspace(-2, 2, V)

    def fused(hidden, kernel, bias):
        targets = losses.Targets(labels, weights)
        with layout(mesh, {"batch": "data"}):
            return losses.cross_entropy((hidden, kernel, bias), targets, smoothing)[0] * 3.0

    def expected(hidden, kernel, bias):
        return naive(hidden, kernel, labels, weights, smoothing, bias) * 3.0

    assert_same(fused, expected, hidden, kernel, bias)
    if shards == 1:  # the second result has no smoothing
        targets = losses.Targets(labels, weights)
        _, nll = losses.cross_entropy((hidden, kernel, None), targets, smoothing)
        np.testing.assert_allclose(nll, naive(hidden, kernel, labels, weights, 0.0), rtol=1e-5)


@pytest.mark.parametrize("way", [{}, {"product_sums": True}, {"one_pass": True}])
@pytest.mark.parametrize("smoothing", [0.0, 0.1])
@pytest.mark.parametrize("chunk_tokens", [7, 30])
def test_other_pieces_share_the_label(arrays, chunk_tokens, smoothing, way, monkeypatch):
    form = losses._Form(int(chunk_tokens * V), **way)
    monkeypatch.setitem(losses._FORMS, "cpu", form)
    hidden, kernel, labels, weights = arrays
    keys = jax.random.split(jax.random.key(1), 2)
    # The label may be among the others, as here.
    ids = jax.random.randint(keys[0], (B, T, 3), 0, V).at[..., 0].set(labels)
    shares = jax.random.uniform(keys[1], (B, T, 3)) / 3

    def fused(hidden, kernel):
        targets = losses.Targets(labels, weights, losses.SoftLabels(ids, shares))
        return losses.cross_entropy((hidden, kernel, None), targets, smoothing)[0]

    def expected(hidden, kernel):
        rest = naive(hidden, kernel, labels, weights * (1 - shares.sum(-1)), smoothing)
        return rest + sum(
            naive(hidden, kernel, ids[..., k], weights * shares[..., k], smoothing)
            for k in range(3)
        )

    assert_same(fused, expected, hidden, kernel)


def test_bfloat16_operands_stay_close(arrays):
    hidden, kernel, labels, weights = arrays
    targets = losses.Targets(labels, weights)
    grad = jax.grad(lambda h, d: losses.cross_entropy((h, kernel, None), targets, 0.1, d)[0])
    exact, low = grad(hidden, jnp.float32), grad(hidden, jnp.bfloat16)
    assert not np.array_equal(exact, low)
    np.testing.assert_allclose(low, exact, atol=0.03)


@pytest.mark.parametrize("way", [{"product_sums": True}, {"one_pass": True}])
def test_other_sums_equal_the_formula(arrays, way, monkeypatch):
    """As on a TPU and a GPU; also for logits whose exponentials overflow."""
    hidden, kernel, labels, weights = arrays
    hidden = hidden * 40.0
    monkeypatch.setitem(losses._FORMS, "cpu", losses._Form(7 * V, **way))

    bias, targets = jnp.linspace(-1, 3, V), losses.Targets(labels, weights)

    def fused(hidden, kernel):
        return losses.cross_entropy((hidden, kernel, bias), targets, 0.1)[0]

    def expected(hidden, kernel):
        return naive(hidden, kernel, labels, weights, 0.1, bias)

    assert np.asarray(hidden @ kernel).max() > 89.0  # log of the largest float32
    assert_same(fused, expected, hidden, kernel, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("way", [{}, {"product_sums": True}, {"one_pass": True}])
@pytest.mark.parametrize("bias", [False, True])
def test_rounded_logits_change_little(arrays, bias, way, monkeypatch):
    """A GPU or TPU stores them in the dtype of the hidden states; a TPU sums them by products."""
    hidden, kernel, labels, weights = arrays
    hidden = hidden.astype(jnp.bfloat16)
    bias_V = jnp.linspace(-1, 1, V) if bias else None

    def loss(hidden, kernel):
        inputs, targets = (hidden, kernel, bias_V), losses.Targets(labels, weights)
        return losses.cross_entropy(inputs, targets, 0.1, jnp.bfloat16)[0]

    want, want_grads = jax.value_and_grad(loss, (0, 1))(hidden, kernel)
    monkeypatch.setitem(losses._FORMS, "cpu", losses._Form(7 * V, True, **way))
    value, grads = jax.value_and_grad(loss, (0, 1))(hidden, kernel)
    assert value != want
    np.testing.assert_allclose(value, want, rtol=2e-3)
    np.testing.assert_allclose(loss(hidden, kernel), value, rtol=1e-6)  # without a gradient
    for got, wanted in zip(grads, want_grads, strict=True):
        difference = np.asarray(got - wanted, np.float32)
        assert np.linalg.norm(difference) < 0.02 * np.linalg.norm(np.asarray(wanted, np.float32))


def test_an_alignment_costs_what_the_formula_says():
    draw = np.random.default_rng(0)
    scores = draw.normal(size=(2, 4, 5))
    weights = np.exp(scores) / np.exp(scores).sum(axis=-1, keepdims=True)
    links = np.zeros((2, 4, 5), bool)
    links[0, 0, 2] = links[0, 1, [0, 3]] = links[1, 3, :] = True
    want = -np.log(weights[0, 0, 2])
    want -= (np.log(weights[0, 1, 0]) + np.log(weights[0, 1, 3])) / 2
    want -= np.log(weights[1, 3]).mean()
    with np.errstate(divide="ignore"):  # a weight of zero where there is no link costs nothing
        logs = np.log(np.where(links, weights, 0.0)).astype(np.float32)
    for given in (np.log(weights), logs):
        np.testing.assert_allclose(losses.alignment_loss(given, links), want, rtol=1e-6)
    gradient = jax.grad(losses.alignment_loss)(logs, links)
    assert np.isfinite(gradient).all() and not gradient[~links].any()
