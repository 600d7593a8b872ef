"""What `--format=safetensors` writes is the model, to the bit, and damage is refused."""

import os
from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tests.formats import exporter_suite as suite
from transformer_jax.config import TrainConfig, to_json
from transformer_jax.errors import UserError
from transformer_jax.formats import safetensors
from transformer_jax.formats.export import export, write
from transformer_jax.formats.import_model import import_model
from transformer_jax.formats.run_folder import write_run
from transformer_jax.mixers.mamba import Mamba
from transformer_jax.paths import as_path
from transformer_jax.positions.t5 import T5


@pytest.fixture(scope="module")
def model():
    config = suite.small(encoder={"position": T5()}, decoder={"mixers": (Mamba(state_size=4),)})
    model = suite.random_model(config, suite.tokenizers())
    return model._replace(config=replace(model.config, train=TrainConfig(ema_decay=0.9)))


def same(a, b):
    assert jax.tree.structure(a) == jax.tree.structure(b)
    for x, y in zip(jax.tree.leaves(a), jax.tree.leaves(b), strict=True):
        assert x.dtype == y.dtype
        np.testing.assert_array_equal(np.asarray(x), np.asarray(y))


def test_run_to_folder_to_run(model, tmp_path):
    run = write_run(tmp_path / "run", model)
    export(run, "safetensors", tmp_path / "out", checkpoint="latest")
    again = import_model(tmp_path / "out", tmp_path / "again")
    same(again.params("latest"), model.params)
    assert to_json(again.config) == to_json(model.config)
    assert again.tokenizers().files() == model.tokenizers.files()
    export(again, "safetensors", tmp_path / "out2")
    for file in ("config.json", "model.safetensors"):
        assert (tmp_path / "out2" / file).read_bytes() == (tmp_path / "out" / file).read_bytes()
    with pytest.raises(UserError, match="out exists: nothing was written"):
        export(run, "safetensors", tmp_path / "out")
    with pytest.raises(UserError, match="holds a run already"):
        import_model(tmp_path / "out", tmp_path / "again")


def test_bfloat16(model, tmp_path):
    config = replace(model.config, model=replace(model.config.model, param_dtype="bfloat16"))
    params = jax.tree.map(lambda x: x.astype(jnp.bfloat16), model.params)
    (tmp_path / "out").mkdir()
    safetensors.Safetensors().write(
        model._replace(config=config, params=params), as_path(tmp_path / "out")
    )
    same(safetensors.read(as_path(tmp_path / "out")).params, params)


def config_with(old, new):
    def change(folder):
        text = (folder / "config.json").read_text()
        assert old in text
        (folder / "config.json").write_text(text.replace(old, new, 1))

    return change


@pytest.mark.parametrize(
    ("damage", "words"),
    [
        (lambda folder: os.truncate(folder / "model.safetensors", 999), "cannot be read"),
        (config_with('"d_ff": 24', '"d_ff": 25'), r"feed_forward.* is .*24.*but config.* .*25"),
        (config_with('"num_layers": 2', '"num_layers": 3'), "coder/blocks_2.* is missing"),
        (lambda folder: (folder / "model.safetensors").unlink(), "cannot be read"),
        (lambda folder: (folder / "config.json").unlink(), "config.json"),
        (lambda folder: (folder / "tokenizer" / "joint.model").unlink(), "joint.model"),
    ],
)
def test_damage_is_refused(model, tmp_path, refuses, damage, words):
    write(safetensors.Safetensors(), model, as_path(tmp_path / "out"))
    damage(tmp_path / "out")
    refuses(tmp_path / "out", words)
