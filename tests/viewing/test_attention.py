"""What `transformer_jax.viewing.attention` shows is what the model computes with."""

from dataclasses import dataclass, replace
from functools import partial
from typing import ClassVar

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import transformer_jax as tj
from tests.small import small_model
from transformer_jax.mixers.registry import CROSS_MIXERS, MIXERS
from transformer_jax.models import api
from transformer_jax.viewing.attention import (
    _influences,
    attention_maps,
    attention_weights,
    effective_attention,
)

CONFIG = small_model(20, encoder=tj.StackConfig(num_layers=2), max_length=12)
SOURCE, TARGET = [5, 6, 7, 2], [9, 8, 2]


def test_layers_that_run_as_a_loop_are_seen_one_by_one():
    loops = replace(CONFIG, scan_layers=True)
    params = api.init(CONFIG, jax.random.key(0))
    for maps in (attention_weights, partial(effective_attention, layers=["encoder.1"])):
        want, got = (maps(config, params, SOURCE, TARGET) for config in (CONFIG, loops))
        assert want.keys() == got.keys()
        jax.tree.map(np.testing.assert_array_equal, got, want)


def test_the_weights_are_those_of_the_formula():
    params = api.init(CONFIG, jax.random.key(0))
    weights = attention_weights(CONFIG, params, SOURCE, TARGET)["encoder.0"]
    block = params["encoder"]["blocks_0"]
    rates = 10000.0 ** (-np.arange(0, 16, 2) / 16)
    angles = np.arange(4)[:, None] * rates
    sinusoids = np.stack([np.sin(angles), np.cos(angles)], -1).reshape(4, 16)
    x = params["target_embedding"]["table"][jnp.array(SOURCE)] * 4.0 + sinusoids
    x = (x - x.mean(-1, keepdims=True)) / np.sqrt(x.var(-1, keepdims=True) + 1e-6)
    heads = block["mixer"]["heads"]
    q = (x @ heads["query"]["kernel"] + heads["query"]["bias"]).reshape(4, 2, 8)
    k = (x @ heads["key"]["kernel"]).reshape(4, 2, 8)
    scores = np.einsum("thk,mhk->htm", q, k) / np.sqrt(8)
    expected = np.exp(scores) / np.exp(scores).sum(-1, keepdims=True)
    np.testing.assert_allclose(weights, expected, atol=1e-5)


ONE_HEAD = replace(CONFIG, num_heads=1, encoder=tj.StackConfig(num_layers=1, position=tj.T5()))


def test_where_scores_do_not_depend_on_the_input_effective_attention_is_the_weight_matrix():
    params = api.init(ONE_HEAD, jax.random.key(0))
    query = params["encoder"]["blocks_0"]["mixer"]["heads"]["query"]
    query["kernel"] = jnp.zeros_like(query["kernel"])
    params["encoder"]["position"]["table"] *= 5.0
    weights = attention_weights(ONE_HEAD, params, SOURCE, TARGET)["encoder.0"][0]
    effective = effective_attention(ONE_HEAD, params, SOURCE, TARGET, ["encoder.0"])["encoder.0"]
    assert weights.std() > 0.05  # the bias has an effect
    np.testing.assert_allclose(effective, weights, atol=1e-5)


def test_effective_attention_has_a_row_for_every_output_and_sees_no_future():
    params = api.init(CONFIG, jax.random.key(0))
    # Compute dtypes are float32 here, also if the model trains in others.
    low = replace(CONFIG, matmul_dtype="bfloat16", dtype="bfloat16", remat=True)
    maps = effective_attention(low, params, SOURCE, TARGET, ["decoder.0", "cross.0"])
    assert {name: e.shape for name, e in maps.items()} == {"decoder.0": (3, 3), "cross.0": (3, 4)}
    for rows in maps.values():
        np.testing.assert_allclose(rows.sum(-1), 1.0, atol=1e-5)
    assert (maps["decoder.0"][np.triu_indices(3, 1)] == 0).all()
    assert (maps["decoder.0"][np.tril_indices(3)] > 0).all()
    assert (maps["cross.0"] > 0).all()


class MeansMixer(tj.Mixer):
    """y_i is the mean of x_0 ... x_i: no weights, and none of our layers."""

    def __call__(self, x, mask):
        return jnp.cumsum(x, axis=1) / (1.0 + jnp.arange(x.shape[1]))[:, None]


class ScaledMeansMixer(MeansMixer):
    """Calls its parent's method of the same name, which must not be counted twice."""

    def __call__(self, x, mask):
        return 3.0 * super().__call__(x, mask)


@dataclass(frozen=True)
class Means(tj.MixerConfig):
    knows_order: ClassVar[bool] = True
    module: type[tj.Mixer] = MeansMixer

    def build(self, context, position):
        return self.module(self, context, position)


@pytest.fixture(autouse=True)
def one_more_mixer(monkeypatch):
    monkeypatch.setitem(MIXERS, "Means", Means)


@pytest.mark.parametrize("mixer", [Means(), Means(ScaledMeansMixer)])
def test_a_mixer_without_weights_needs_no_code_of_its_own(mixer):
    config = replace(CONFIG, encoder=tj.StackConfig(num_layers=1, mixers=(mixer,)))
    params = api.init(config, jax.random.key(0))
    maps = effective_attention(config, params, SOURCE, TARGET, ["encoder.0"])
    want = np.tril(np.ones((4, 4))) / np.arange(1, 5)[:, None]
    np.testing.assert_allclose(maps["encoder.0"], want, atol=1e-6)


@pytest.mark.parametrize(
    ("role", "name"),
    [("cross", name) for name in CROSS_MIXERS]
    + [(r, n) for r in ("encoder", "decoder") for n, c in MIXERS.items() if r not in c.refuses],
)
def test_every_mixer_can_be_differentiated_as_the_map_needs_it(role, name):
    """By tracing only, which is where JAX raises."""
    if role == "cross":
        chosen = {"cross": CROSS_MIXERS[name]()}
    else:
        chosen = {role: tj.StackConfig(num_layers=1, mixers=(MIXERS[name](),))}
    config, ids = replace(CONFIG, **chosen), jax.ShapeDtypeStruct((1, 5), jnp.int32)
    influences = partial(_influences, config, api.mixer_paths(config)[f"{role}.0"])
    assert jax.eval_shape(influences, api.abstract_params(config), ids, ids).shape == (5, 5)


def test_maps_are_weights_where_there_are_any_and_effective_elsewhere():
    hybrid = tj.StackConfig(num_layers=2, mixers=(tj.Full(), Means()))
    config = replace(CONFIG, encoder=hybrid)
    params = api.init(config, jax.random.key(0))
    maps = attention_maps(config, params, SOURCE, TARGET)
    assert {name: m.shape for name, m in maps.items()} == {
        "encoder.0": (2, 4, 4),
        "encoder.1": (1, 4, 4),
        "decoder.0": (2, 3, 3),
        "cross.0": (2, 3, 4),
    }
    for rows in maps.values():
        np.testing.assert_allclose(rows.sum(-1), 1.0, atol=1e-5)
    assert (np.triu(maps["decoder.0"], 1) == 0).all()
