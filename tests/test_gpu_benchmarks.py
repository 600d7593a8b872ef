"""The commands for a GPU that is at hand for minutes, in tiny sizes on a CPU."""

import gzip
import importlib
import json
import os
import subprocess
import sys

import pytest

from tests.oracles import need
from tests.pages import ROOT
from transformer_jax.models.config import ModelConfig, StackConfig
from transformer_jax.models.flops import train_step_flops


@pytest.fixture
def benchmark(monkeypatch):
    """Imports a module of benchmarks/."""
    monkeypatch.syspath_prepend(ROOT / "benchmarks")
    return importlib.import_module


def rows_of(path):
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


@pytest.mark.parametrize("command", ["step", "more", "train"])
def test_a_command_runs_all_its_parts(command, benchmark, tmp_path):
    need("torch")
    for name in ("train", "val", "test_2016_flickr"):
        for side in ("en", "de"):
            with gzip.open(tmp_path / f"{name}.{side}.gz", "wt") as file:
                file.writelines(f"{side} {line} of {name}\n" for line in range(40))
    environment = {**os.environ, "MULTI30K": str(tmp_path), "COMMIT": "abc"}
    arguments = ["benchmarks/gpu.py", command, "--tiny", f"--output={tmp_path}"]
    subprocess.run([sys.executable, *arguments], cwd=ROOT, env=environment, check=True)
    rows = rows_of(tmp_path / f"{command}.jsonl")
    ends = {row["job"]: row["ended"] for row in rows if "ended" in row}
    assert ends == {part.name: "done" for part in benchmark("gpu").PARTS[command]}
    assert all({"card", "driver", "jax", "jaxlib", "torch"} <= set(row) for row in rows)
    assert {row["commit"] for row in rows} == {"abc"}
    assert [row for row in rows if "error" in row] == []
    measured = {row["job"] for row in rows if set(row) & {"ms", "us", "unit", "name", "caches"}}
    assert len(measured) >= {"step": 7, "more": 5, "train": 1}[command]


def test_pytorchs_step_has_as_many_flops_as_ours(benchmark):
    need("torch")
    torch_gpu = benchmark("torch_gpu")
    size = torch_gpu.Size(d_model=16, d_ff=32, heads=2, vocab=50, dropout=0.1, layers=1)
    stack = StackConfig(num_layers=1)
    sizes = dict(source_vocab_size=50, target_vocab_size=50, d_model=16, d_ff=32, num_heads=2)
    model = ModelConfig(encoder=stack, decoder=stack, max_length=8, **sizes)
    assert torch_gpu.flops_of_step(size, 4, 6) == train_step_flops(model, 4, 6)
