"""The commands for a GPU that is at hand for minutes, in tiny sizes on a CPU."""

import gzip
import importlib
import json
import os
import subprocess
import sys
from types import SimpleNamespace

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


@pytest.mark.parametrize(("command", "most"), [("step", 545), ("more", 500), ("train", 500)])
def test_the_limits_of_the_parts_add_up_to_less_than_ten_minutes(command, most, benchmark):
    assert sum(part.limit for part in benchmark("gpu").PARTS[command]) <= most


def test_a_part_that_fails_or_is_cut_off_is_a_row(benchmark, tmp_path, monkeypatch):
    gpu = benchmark("gpu")
    commands = {
        "cut": """echo '{"ms": 1}'; sleep 60 & sleep 60""",
        "fails": "echo oh >&2; exit 3",
        "works": """echo words; echo '{"ms": 2}'""",
    }
    parts = [gpu.Part(name, 0.5, command, "") for name, command in commands.items()]
    monkeypatch.setitem(gpu.PARTS, "more", parts)
    monkeypatch.setattr(sys, "argv", ["gpu.py", "more", f"--output={tmp_path}"])
    gpu.main()
    rows = rows_of(tmp_path / "more.jsonl")
    found = [(row["job"], row.get("ms", row.get("ended"))) for row in rows]
    assert found == [
        ("cut", 1),
        ("cut", "cut off after 0.5 s"),
        ("fails", "failed with status 3: oh"),
        ("works", 2),
        ("works", "done"),
    ]
    assert "words" in (tmp_path / "more.log").read_text(encoding="utf-8")


def test_pytorchs_step_has_as_many_flops_as_ours(benchmark):
    need("torch")
    torch_gpu = benchmark("torch_gpu")
    size = torch_gpu.Size(d_model=16, d_ff=32, heads=2, vocab=50, dropout=0.1, layers=1)
    stack = StackConfig(num_layers=1)
    sizes = dict(source_vocab_size=50, target_vocab_size=50, d_model=16, d_ff=32, num_heads=2)
    model = ModelConfig(encoder=stack, decoder=stack, max_length=8, **sizes)
    assert torch_gpu.flops_of_step(size, 4, 6) == train_step_flops(model, 4, 6)


def test_kernels_are_counted_by_kind_with_the_time_in_which_the_gpu_is_idle(benchmark, capsys):
    def event(start, took, name):
        return SimpleNamespace(start_ns=start, duration_ns=took, name=name)

    events = [event(0, 2000, "nvjet_tst_128"), event(12_000, 8000, "loop_add_fusion_3")]
    events += [event(100_000, 5000, "loop_add_fusion_4")]
    stream = SimpleNamespace(name="Stream #1", events=events)
    repeated = SimpleNamespace(name="XLA Ops", events=[event(0, 99, "repeated")])
    plane = SimpleNamespace(name="/device:GPU:0", lines=[stream, repeated])
    benchmark("device").by_kernel([plane], steps=1)
    rows = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert rows[1] == {
        "kernels_a_step": 3,
        "span_ms": 0.105,
        "busy_ms": 0.015,
        "gaps_below_20us_ms": 0.01,
        "gaps_above_20us_ms": 0.08,
        "shorter_than_3us": 1,
    }
    kinds = {row["kernel"]: (row["a_step"], row["ms"]) for row in rows[2:]}
    assert kinds["products"] == (1, 0.002)
    assert kinds["other fusions"] == kinds["loop_add_fusion"] == (2, 0.013)
