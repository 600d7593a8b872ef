"""Low-rank adapters: they start as nothing, merge into the weights, and are split as these are."""

from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tests.training import toy
from transformer_jax.errors import UserError
from transformer_jax.mixers.registry import MIXERS
from transformer_jax.models import api
from transformer_jax.models.config import StackConfig
from transformer_jax.models.lora import Lora
from transformer_jax.models.paths import by_path

LORA = Lora(rank=3, alpha=6.0, targets=("*/query/kernel", "*/feed_forward/*", "target_embedding/*"))
ADAPTED = replace(toy.MODEL, adapter=LORA)


def trained_looking(params):
    """The parameters with other adapters than those that begin."""
    factors = by_path(params["lora"])
    keys = jax.random.split(jax.random.key(7), len(factors))
    lora = [
        0.3 * jax.random.normal(key, x.shape) for key, x in zip(keys, factors.values(), strict=True)
    ]
    return params | {"lora": jax.tree.unflatten(jax.tree.structure(params["lora"]), lora)}


def logits(model, params):
    batch = toy.batch(0)
    target_in = api.shift_right(jnp.asarray(batch["target"]))
    return api.apply(
        model, params, batch["source"], batch["source_mask"], target_in, batch["target_mask"]
    )


def test_an_adapted_model_starts_as_the_model_itself():
    plain, adapted = (api.init(model, jax.random.key(0)) for model in (toy.MODEL, ADAPTED))
    jax.tree.map(np.testing.assert_array_equal, plain, {k: adapted[k] for k in plain})
    np.testing.assert_array_equal(logits(ADAPTED, adapted), logits(toy.MODEL, plain))


def test_the_adapted_matrix_is_w_plus_scaled_a_b():
    params = trained_looking(api.init(ADAPTED, jax.random.key(0)))
    model, merged = api.merge_adapter(ADAPTED, params)
    assert model == toy.MODEL
    before, after = by_path(params), by_path(merged)
    adapted = {
        path.removeprefix("lora/").removesuffix("/a") for path in before if path.endswith("/a")
    }
    assert len(adapted) == 3 + 2 * 2 + 1  # queries, up and down of both stacks, the embedding
    for path, weight in after.items():
        w = np.asarray(before[path], np.float64)
        if path in adapted:
            a, b = (np.asarray(before[f"lora/{path}/{name}"], np.float64) for name in "ab")
            w = w + 6.0 / 3 * a @ b
        np.testing.assert_allclose(weight, w, atol=1e-6)


def test_merged_and_unmerged_predict_the_same():
    params = trained_looking(api.init(ADAPTED, jax.random.key(0)))
    model, merged = api.merge_adapter(ADAPTED, params)
    np.testing.assert_allclose(logits(ADAPTED, params), logits(model, merged), atol=1e-6)
    begun = logits(model, api.init(model, jax.random.key(0)))
    assert abs(logits(ADAPTED, params) - begun).max() > 0.1


def test_factors_are_split_as_the_axes_of_their_matrix():
    axes = by_path(api.logical_axes(ADAPTED))
    up = "encoder/blocks_0/feed_forward/up/kernel"
    assert tuple(axes[up]) == ("embed", "mlp")
    assert tuple(axes[f"lora/{up}/a"]) == ("embed", "rank")
    assert tuple(axes[f"lora/{up}/b"]) == ("rank", "mlp")


@pytest.mark.parametrize("mixer", sorted(MIXERS))
def test_every_mixer_can_be_adapted(mixer):
    role = "decoder" if "encoder" in MIXERS[mixer].refuses else "encoder"
    stack = StackConfig(num_layers=1, mixers=(MIXERS[mixer](),))
    model = replace(toy.MODEL, adapter=Lora(targets=("*/mixer/*",)), max_length=64, **{role: stack})
    paths = by_path(api.abstract_params(model))
    assert any(path.startswith(f"lora/{role}/blocks_0/mixer/") for path in paths)


def test_targets_that_match_nothing_are_refused_with_the_nearest_paths():
    def refusal(*targets):
        with pytest.raises(UserError) as refused:
            api.abstract_params(replace(toy.MODEL, adapter=Lora(targets=targets)))
        return str(refused.value)

    assert refusal("*/up/kernel", "encoder/*/qeury/kernel").startswith(
        "model.adapter.targets: 'encoder/*/qeury/kernel' matches no parameter; the nearest are "
        "encoder/blocks_*/mixer/heads/query/kernel, "
    )
    assert refusal("*/up/bias") == (
        "model.adapter.targets=*/up/bias matches no matrix (decoder/blocks_0/feed_forward/up/bias "
        "has the shape (32,)): adapters are for parameters with two axes"
    )
    assert "matches no matrix" in refusal()
