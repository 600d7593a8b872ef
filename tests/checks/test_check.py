"""`transformer-jax check`: it passes here, and finds what is wrong."""

import json
import subprocess
import sys
from types import SimpleNamespace
from unittest.mock import MagicMock

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import transformer_jax as tj
from transformer_jax.checks import machine, numbers, speed
from transformer_jax.checks.row import Row
from transformer_jax.cli.main import main
from transformer_jax.mixers.full_attention import FullAttention
from transformer_jax.ops.flash_attention import blockwise_attention
from transformer_jax.plan.topologies import this_machine


def found(rows):
    return {row.name: row.is_ok for row in rows}


def test_a_difference_is_relative_to_the_largest_number():
    want = {"a": jnp.array([1.0, -200.0]), "b": jnp.array([0.0])}
    got = {"a": jnp.array([1.0, -199.0]), "b": jnp.array([0.5])}
    assert numbers.difference(got, want) == pytest.approx(1 / 200)


@pytest.mark.parametrize(("value", "is_ok"), [(0.1, True), (0.2, False), (float("nan"), False)])
def test_a_row_is_ok_up_to_its_limit(value, is_ok):
    assert Row("part", "name", value, limit=0.1).is_ok is is_ok


def test_kernels_of_attention_pass():
    rows = found(numbers._kernel_rows())
    assert len(rows) == 8 and all(rows.values())


def test_a_kernel_that_reads_padding_is_found(monkeypatch):
    def reads_padding(q, k, v, mask, *, causal):
        return blockwise_attention(q, k, v, jnp.ones_like(mask), causal=causal)

    monkeypatch.setattr(numbers, "flash_attention", reads_padding)
    rows = found(numbers._kernel_rows())
    assert not rows["blockwise, float32: outputs"]
    assert not rows["blockwise, float32: gradients"]


def test_a_mixer_whose_step_forgets_is_found(monkeypatch):
    monkeypatch.setattr(numbers, "MIXERS", {"full": numbers.MIXERS["full"]})
    assert found(numbers._mixer_rows()) == {"full": True}
    step = FullAttention.step
    late = lambda self, x, state, position: step(self, x, state, jnp.maximum(position - 1, 0))  # noqa: E731
    monkeypatch.setattr(FullAttention, "step", late)
    assert found(numbers._mixer_rows()) == {"full": False}


def test_a_model_with_other_losses_is_found(monkeypatch):
    results = iter([(np.ones(3), {"w": np.ones(2)}, [np.ones((2, 3))] * 2)] * 2)
    monkeypatch.setattr(numbers, "_train_and_search", lambda *_: next(results))
    assert all(found(numbers._model_rows()).values())
    other = (np.full(3, 1.1), {"w": np.array([1.0, np.nan])}, [np.zeros((2, 3)), np.ones((2, 3))])
    results = iter([other, (np.ones(3), {"w": np.ones(2)}, [np.ones((2, 3))] * 2)])
    rows = found(numbers._model_rows())
    assert rows == {
        "loss of three steps": False,
        "parameters after them": False,
        "greedy search": False,
        "beam search": True,
    }


def test_memory_is_in_gib(monkeypatch):
    """On the devices that tell it, which a CPU does not."""
    stats = {"peak_bytes_in_use": 3 << 30, "bytes_limit": 5 << 30}
    device = SimpleNamespace(memory_stats=lambda: stats, device_kind="a device")
    for name in ("begin_new", "make_mesh", "_training", "searching"):
        monkeypatch.setattr(speed, name, MagicMock())
    target = SimpleNamespace(device=None, devices=[device])
    (row,) = speed.measure(tj.Config(), target, "a part")
    assert (row.name, row.value, row.unit) == ("memory, most so far", 3.0, "GiB")
    monkeypatch.setattr(machine.jax, "devices", lambda: [device])
    rows = {row.name: (row.value, row.unit) for row in machine.rows()}
    assert rows["memory of a device"] == (5.0, "GiB")


@pytest.mark.parametrize(("value", "status"), [(0.0, 0), (2.0, 1)])
def test_the_exit_status_says_whether_something_is_wrong(value, status, monkeypatch, capsys):
    row = Row("a part", "a check", value, limit=1.0)
    for module in (machine, numbers, speed):
        monkeypatch.setattr(module, "rows", lambda: iter([row]))
    assert main(["check"]) == status
    out = capsys.readouterr().out
    assert "a part" in out and ("wrong: a check" in out) == bool(status)
    assert main(["check", "--json"]) == status
    lines = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [line["ok"] for line in lines] == [not status] * 3
    assert lines[0]["value"] == value and lines[0]["limit"] == 1.0


def test_a_recipe_is_measured_without_a_plan_on_a_cpu():
    stack = tj.StackConfig(num_layers=1)
    config = tj.Config(
        tokenizer=tj.TokenizerConfig(vocab_size=300),
        model=tj.ModelConfig(encoder=stack, decoder=stack, d_model=8, d_ff=8, num_heads=1),
        batch=tj.BatchConfig(tokens=40, max_length=10),
        decode=tj.DecodeConfig(method=tj.Greedy(), batch_size=3),
    )
    rows = list(speed.measure(config, this_machine(), "tiny", seconds=0.0))
    assert [row.name for row in rows] == [
        "training step of 4 pairs of 10 + 10 pieces",
        "target pieces trained",
        "search (greedy) for 3 sentences of 10 pieces",
        "sentences translated",
    ]
    assert all(row.value > 0 for row in rows)
    milliseconds, pieces = rows[0].value, rows[1].value
    assert pieces == pytest.approx(40 / milliseconds * 1000)


@pytest.mark.slow
def test_the_whole_command_passes_on_this_machine():
    command = [sys.executable, "-c", "from transformer_jax.cli.main import main; exit(main())"]
    done = subprocess.run([*command, "check"], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "WRONG" not in done.stdout and jax.devices()[0].device_kind in done.stdout
