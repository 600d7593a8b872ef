"""Each scheme against its formula, written out in NumPy."""

from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import transformer_jax as tj
from tests.small import small_model
from transformer_jax.models import api
from transformer_jax.positions.alibi import slopes
from transformer_jax.positions.rope import rotated
from transformer_jax.positions.sinusoidal import sinusoids
from transformer_jax.positions.t5 import relative_buckets

D, HEADS, MAX = 8, 2, 10
WORDS = jax.random.normal(jax.random.key(0), (2, 4, D))
HERE = jnp.array([0, 1, 2, 5])


def scheme(config, *, causal=False):
    return config.build(tj.PositionContext(D, HEADS, head_dim=4, max_length=MAX, causal=causal))


def test_sinusoids():
    want = [
        [f(p / 10000 ** (2 * i / D)) for i in range(D // 2) for f in (np.sin, np.cos)]
        for p in range(20)
    ]
    np.testing.assert_allclose(sinusoids(jnp.arange(20), D), want, atol=1e-5)


@pytest.mark.parametrize(("form", "steps"), [("halves", D // 2), ("tensor2tensor", D // 2 - 1)])
def test_sinusoids_in_halves(form, steps):
    angles = (HERE + 2)[:, None] / 10000 ** (np.arange(D // 2) / steps)
    want = WORDS + np.concatenate([np.sin(angles), np.cos(angles)], axis=1)
    got = scheme(tj.Sinusoidal(form=form, first=2)).apply({}, WORDS, HERE, method="embed")
    np.testing.assert_allclose(got, want, atol=1e-6)


def test_halves_need_an_even_width():
    context = tj.PositionContext(7, 1, head_dim=7, max_length=MAX, causal=False)
    with pytest.raises(tj.UserError, match="form=halves .*model.d_model must be even"):
        tj.Sinusoidal(form="halves").check(context)


def test_learned():
    table = jax.random.normal(jax.random.key(1), (MAX, D))
    got = scheme(tj.Learned()).apply({"params": {"table": table}}, WORDS, HERE, method="embed")
    np.testing.assert_allclose(got, WORDS + table[HERE] * np.sqrt(D), atol=1e-5)


def test_scalar():
    direction = jax.random.normal(jax.random.key(1), (D,))
    module = scheme(tj.Scalar())
    got = module.apply({"params": {"direction": direction}}, WORDS, HERE, method="embed")
    share = np.array([0.0, 0.1, 0.2, 0.5])[:, None]
    np.testing.assert_allclose(got, WORDS + share * direction * np.sqrt(D), atol=1e-5)


def test_concatenated():
    words = WORDS[..., :5]
    module = scheme(tj.Concatenated(width=3))
    got = module.apply({}, words, HERE, method="embed")
    np.testing.assert_array_equal(got[..., :5], words)
    np.testing.assert_allclose(got[1, :, 5:], sinusoids(HERE, 3), atol=1e-6)
    assert tj.Concatenated().word_width(D) == 6  # a quarter of the features holds the position


@pytest.mark.parametrize("tied", ["all", "decoder", "none"])
def test_concatenated_in_a_model(tied):
    beside = tj.StackConfig(num_layers=1, position=tj.Concatenated())
    config = small_model(9, both=beside, d_ff=16, tie_embeddings=tied, max_length=8)
    params = api.init(config, jax.random.key(0))
    assert params["target_embedding"]["table"].shape == (9, 12)
    ids, mask = jnp.array([[4, 5, 6]]), jnp.ones((1, 3), bool)
    logits = api.apply(config, params, ids, mask, ids, mask)
    batch = {"source": ids, "source_mask": mask, "target": ids, "target_mask": mask}
    target_in = api.shift_right(ids)
    log_probs = jax.nn.log_softmax(api.apply(config, params, ids, mask, target_in, mask))
    want = -jnp.take_along_axis(log_probs, ids[..., None], axis=-1).sum()
    np.testing.assert_allclose(api.loss(config, params, batch)[1], want, rtol=1e-5)
    if tied == "none":
        assert params["projection"]["kernel"].shape == (16, 9)
        return
    # Tied embeddings act as an output table with zeros at the position features.
    untied = replace(config, tie_embeddings="none")
    kernel = jnp.pad(params["target_embedding"]["table"], ((0, 0), (0, 4))).T
    source = params.get("source_embedding", params["target_embedding"])
    other = params | {"projection": {"kernel": kernel}, "source_embedding": source}
    np.testing.assert_allclose(api.apply(untied, other, ids, mask, ids, mask), logits, atol=1e-5)


def test_alibi():
    np.testing.assert_allclose(slopes(8), [2.0**-i for i in range(1, 9)])  # the paper's
    np.testing.assert_allclose(slopes(6), [2.0**-i for i in (2, 4, 6, 8, 1, 3)])
    np.testing.assert_allclose(slopes(1), [2**-8])
    bias = scheme(tj.Alibi()).apply({}, HERE, jnp.arange(3), method="bias")
    distances = np.abs(np.array([0, 1, 2, 5])[:, None] - np.arange(3))
    np.testing.assert_allclose(bias, [-(2.0**-4) * distances, -(2.0**-8) * distances])


def test_rope_is_a_rotation_in_the_complex_plane():
    x = jax.random.normal(jax.random.key(0), (2, 4, HEADS, 6))
    pairs = np.asarray(x, np.float64).reshape(2, 4, HEADS, 3, 2)
    angles = np.array([0, 1, 2, 5])[:, None] * 100.0 ** (-np.arange(0, 6, 2) / 6)
    turned = (pairs[..., 0] + 1j * pairs[..., 1]) * np.exp(1j * angles)[:, None]
    want = np.stack([turned.real, turned.imag], -1).reshape(x.shape)
    np.testing.assert_allclose(rotated(x, HERE, 100.0), want, atol=1e-5)


def test_t5_buckets_by_hand():
    # 8 buckets, bidirectional: 4 for each direction, of which 2 are exact.
    def sides(distances, **sizes):
        return relative_buckets(jnp.array(distances), **sizes).tolist()

    both = {"bidirectional": True, "num_buckets": 8, "max_distance": 8}
    assert sides([0, -1, -2, -3, -4, -8, -99], **both) == [0, 1, 2, 2, 3, 3, 3]
    assert sides([1, 2, 4, 99], **both) == [5, 6, 7, 7]
    past = {"bidirectional": False, "num_buckets": 8, "max_distance": 16}
    distances = [5, 1, 0, -1, -3, -4, -6, -8, -12, -16, -99]
    assert sides(distances, **past) == [0, 0, 0, 1, 3, 4, 5, 6, 7, 7, 7]


def test_t5_gives_each_head_its_own_number():
    table = jax.random.normal(jax.random.key(1), (32, HEADS))
    module = scheme(tj.T5(multiplier=3.0), causal=True)
    bias = module.apply({"params": {"table": table}}, jnp.arange(3), jnp.arange(3), method="bias")
    assert bias.shape == (HEADS, 3, 3)
    np.testing.assert_array_equal(bias[:, 2, 0], 3 * table[2])
    np.testing.assert_array_equal(bias[:, 1, 1], 3 * table[0])


def test_t5s_multiplier_changes_how_far_a_step_goes_and_not_where_it_begins():
    def begun(multiplier):
        module, at = scheme(tj.T5(multiplier=multiplier), causal=True), jnp.arange(8)
        return module.init_with_output(jax.random.key(0), at, at, method="bias")

    (first, params), (plain, table) = begun(8.0), begun(1.0)
    np.testing.assert_allclose(first, plain, rtol=1e-6)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(8 * a, b, rtol=1e-6), params, table)
