"""The experiments with mixers vary one part at a time, in models of equal size."""

import dataclasses
import gzip
import importlib

import pytest

from tests.pages import ROOT
from transformer_jax.config import override

#: The parts of a model that a row names.
PARTS = {
    "encoder": {"encoder"},
    "decoder": {"decoder"},
    "cross": {"cross"},
    "full": set(),
}


@pytest.fixture(scope="module", autouse=True)
def benchmarks():
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(ROOT / "benchmarks")
        yield


@pytest.fixture(scope="module")
def captions(tmp_path_factory):
    """Files as Multi30k has them, with as many lines."""
    folder = tmp_path_factory.mktemp("multi30k")
    for name, lines in (("train", 29_000), ("val", 10), ("test_2016_flickr", 10)):
        for side in ("en", "de"):
            with gzip.open(folder / f"{name}.{side}.gz", "wt", compresslevel=1) as file:
                file.writelines(f"{side} {line}\n" for line in range(lines))
    return folder


@pytest.fixture(scope="module")
def experiment(captions):
    module = importlib.import_module("multi30k_mixers")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "TEXT", captions)
        yield module


def test_a_row_differs_from_full_attention_in_its_part_alone(experiment):
    base = experiment.base()
    for name, changes in experiment.changes().items():
        config = override(base, changes)
        fields = [field.name for field in dataclasses.fields(config.model)]
        changed = {f for f in fields if getattr(config.model, f) != getattr(base.model, f)}
        assert changed == PARTS[name.partition(" ")[0]], name
        assert dataclasses.replace(config, model=base.model) == base, name


def test_rows_that_are_done_have_as_many_parameters_within_a_twentieth(experiment):
    done = importlib.import_module("rows").read_rows("multi30k_mixers")
    assert set(done) <= set(experiment.keys())
    full = done["full", 0]["parameters"]
    assert all(abs(row["parameters"] / full - 1) < 0.05 for row in done.values())


@pytest.mark.parametrize("name", ["full", "encoder linear"])
def test_a_row_that_is_done_is_of_the_model_that_the_experiment_trains_today(experiment, name):
    done = importlib.import_module("rows").read_rows("multi30k_mixers")
    made, row = done[name, 0], experiment.row(name)
    assert (made["parameters"], made["d_ff"]) == (row.parameters, row.config.model.d_ff)


def test_documents_at_three_rates_are_of_equal_models_and_those_that_are_done():
    experiment = importlib.import_module("long_documents")
    done = importlib.import_module("rows").read_rows(experiment.NAME)
    assert set(done) <= set(experiment.keys(done))
    rows = experiment.rows()
    every = {name: row for points in rows.values() for name, row in points.items()}
    parameters = [row.parameters for row in every.values()]
    assert max(parameters) < 1.05 * parameters[0] and min(parameters) > 0.95 * parameters[0]
    learning_rates = [row.config.train.schedule.learning_rate for row in rows["full"].values()]
    assert learning_rates == [1.3e-3, 4e-3, 1.2e-2]
    for (name, _), row in done.items():
        made = every[name].parameters, every[name].config.model.d_ff
        assert made == (row["parameters"], row["d_ff"])
