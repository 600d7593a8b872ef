"""The benchmark of translation scores covers every mixer, and its rows state how they differ."""

import dataclasses
import importlib.util
from pathlib import Path

import pytest

from transformer_jax.config import override
from transformer_jax.mixers.registry import CROSS_MIXERS, MIXERS
from transformer_jax.models.config import check_model_config
from transformer_jax.positions.registry import POSITIONS
from transformer_jax.recipes import load_recipe
from transformer_jax.variants import kind_of

ROOT = Path(__file__).parents[1]


@pytest.fixture(scope="module")
def benchmark():
    spec = importlib.util.spec_from_file_location("q", ROOT / "benchmarks" / "mixers_quality.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def model_of(keys):
    model = override(load_recipe(str(ROOT / "configs" / "quickstart.py")), keys).model
    return dataclasses.replace(
        model, source_vocab_size=500, target_vocab_size=500, matmul_dtype="float32"
    )


def test_every_mixer_in_every_role_every_position_and_three_hybrids(benchmark):
    models = {name: model_of(keys) for name, keys in benchmark.variants().items()}
    for model in models.values():
        check_model_config(model)
    alone = {name: model for name, model in models.items() if not name.startswith("hybrid")}
    assert len(models) - len(alone) == 3
    for role in ("encoder", "decoder"):
        supported = {name for name, mixer in MIXERS.items() if role not in mixer.refuses}
        used = {m for model in alone.values() for m in getattr(model, role).mixers}
        assert {kind_of(m, MIXERS) for m in used} == supported
        positions = {getattr(model, role).position for model in alone.values()}
        assert {kind_of(position, POSITIONS) for position in positions} == set(POSITIONS)
    crosses = {kind_of(model.cross, CROSS_MIXERS) for model in alone.values()}
    assert crosses == set(CROSS_MIXERS)
    assert len(set(models.values())) == len(models) - 1  # the recipe has sinusoidal positions


def test_a_row_holds_only_its_own_overrides(benchmark):
    variants = benchmark.variants()
    assert variants["full"] == {}
    assert variants["linformer cross"] == {"model.cross": "linformer(rank=16)"}
    assert variants["hybrid: window, full (encoder)"] == {
        "model.encoder.mixers": "window(window=4),full"
    }


def test_the_table_shows_options_and_errors(benchmark):
    row = {
        "keys": {"model.cross": "x(rank=16)"},
        "bleu": 12.345,
        "signature": "nrefs:1",
        "parameters": 1234567,
        "steps": 450,
        "steps_per_second": 2.0,
        "sentences_per_second": 3.0,
        "cores": 1,
    }
    text = benchmark.table({"x cross": row, "y": {"error": "train.py: no"}})
    assert "| x cross | rank=16 | 12.3 | 1,234,567 | 2.00 | 3.0 |" in text
    assert "| y | | train.py: no | | | |" in text
    assert "450 steps each, on 1 core; nrefs:1" in text
