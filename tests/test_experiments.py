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
    "both": {"encoder", "decoder"},
    "position": {"encoder", "decoder"},
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


@pytest.fixture(scope="module", params=["long_documents", "multi30k_mixers"])
def experiment(request, captions):
    module = importlib.import_module(request.param)
    with pytest.MonkeyPatch.context() as patch:
        if request.param == "multi30k_mixers":
            patch.setattr(module, "TEXT", captions)
        yield module


def base_of(experiment):
    return experiment.CONFIG if experiment.__name__ == "long_documents" else experiment.base()


def test_a_row_differs_from_full_attention_in_its_part_alone(experiment):
    base = base_of(experiment)
    for name, changes in experiment.changes().items():
        config = override(base, changes)
        fields = [field.name for field in dataclasses.fields(config.model)]
        changed = {f for f in fields if getattr(config.model, f) != getattr(base.model, f)}
        assert changed - {"max_length"} == PARTS[name.partition(" ")[0]], name
        length = base.decode.max_source_length
        decode = dataclasses.replace(config.decode, max_source_length=length)
        assert dataclasses.replace(config, model=base.model, decode=decode) == base, name


def test_rows_that_are_done_have_as_many_parameters_within_a_twentieth(experiment):
    done = importlib.import_module("rows").read_rows(experiment.__name__)
    assert set(done) <= set(experiment.keys())
    full = done["full", 0]["parameters"]
    unequal = {name for (name, _), row in done.items() if abs(row["parameters"] / full - 1) > 0.05}
    assert unequal <= ({"decoder mlp_mixer"} if experiment.__name__ == "long_documents" else set())


@pytest.mark.parametrize("name", ["full", "encoder linear"])
def test_a_row_that_is_done_is_of_the_model_that_the_experiment_trains_today(experiment, name):
    done = importlib.import_module("rows").read_rows(experiment.__name__)
    made, row = done[name, 0], experiment.row(name)
    assert (made["parameters"], made["d_ff"]) == (row.parameters, row.config.model.d_ff)


def test_rows_at_three_rates_have_as_many_parameters_within_a_twentieth():
    rows = importlib.import_module("long_documents_rates").rows()
    parameters = [row.parameters for points in rows.values() for row in points.values()]
    assert max(parameters) < 1.05 * parameters[0] and min(parameters) > 0.95 * parameters[0]
    learning_rates = [row.config.train.schedule.learning_rate for row in rows["full"].values()]
    assert learning_rates == [1.3e-3, 4e-3, 1.2e-2]
