"""The experiments with mixers vary one part at a time; the commands for a GPU run on a CPU."""

import dataclasses
import gzip
import importlib
import json
import os
import subprocess
import sys

import pytest

from tests.oracles import need
from tests.pages import ROOT
from tests.small import small_model
from transformer_jax.config import override
from transformer_jax.models.flops import train_step_flops

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


def write_captions(folder, lines):
    """Files as Multi30k has them, with so many lines of training text."""
    for name, count in (("train", lines), ("val", 40), ("test_2016_flickr", 40)):
        for side in ("en", "de"):
            with gzip.open(folder / f"{name}.{side}.gz", "wt", compresslevel=1) as file:
                file.writelines(f"{side} {line} of {name}\n" for line in range(count))


@pytest.fixture(scope="module")
def experiment(tmp_path_factory):
    module = importlib.import_module("multi30k_mixers")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "TEXT", tmp_path_factory.mktemp("multi30k"))
        write_captions(module.TEXT, 29_000)
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


@pytest.mark.parametrize("command", ["step", "more", "train"])
def test_a_command_for_a_gpu_runs_all_its_parts(command, tmp_path):
    need("torch")
    write_captions(tmp_path, 40)
    environment = {**os.environ, "MULTI30K": str(tmp_path), "COMMIT": "abc"}
    arguments = ["benchmarks/gpu.py", command, "--tiny", f"--output={tmp_path}"]
    subprocess.run([sys.executable, *arguments], cwd=ROOT, env=environment, check=True)
    lines = (tmp_path / f"{command}.jsonl").read_text(encoding="utf-8").splitlines()
    rows = [json.loads(line) for line in lines]
    ends = {row["job"]: row["ended"] for row in rows if "ended" in row}
    assert ends == {part.name: "done" for part in importlib.import_module("gpu").PARTS[command]}
    assert all({"card", "driver", "jax", "jaxlib", "torch"} <= set(row) for row in rows)
    assert {row["commit"] for row in rows} == {"abc"}
    assert [row for row in rows if "error" in row] == []
    measured = {row["job"] for row in rows if set(row) & {"ms", "us", "unit", "name", "caches"}}
    assert len(measured) >= {"step": 7, "more": 5, "train": 1}[command]


def test_pytorchs_step_has_as_many_flops_as_ours():
    need("torch")
    torch_gpu = importlib.import_module("torch_gpu")
    size = torch_gpu.Size(d_model=16, d_ff=32, heads=2, vocab=50, dropout=0.1, layers=1)
    assert torch_gpu.flops_of_step(size, 4, 6) == train_step_flops(
        small_model(50, max_length=8), 4, 6
    )
