"""Five random kills; docs/reliability.md has the result of thirty. And when the script fails."""

import importlib.util
import json
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

SCRIPT = Path(__file__).parents[2] / "benchmarks" / "kill_and_resume.py"


@pytest.mark.slow
def test_killed_at_random_moments_and_restarted():
    done = subprocess.run(
        [sys.executable, str(SCRIPT), "--kills=5", "--steps=150", "--seed=1"],
        capture_output=True,
        text=True,
        timeout=1500,
    )
    assert done.returncode == 0, done.stdout + done.stderr[-2000:]
    assert json.loads(done.stdout)["kills"] == 5


@pytest.mark.parametrize(
    ("moments", "status"),
    [
        (["training"] * 19 + ["saving"], 0),
        (["training"] * 20, 1),
        (["saving"] * 19 + ["finished"], 1),
    ],
    ids=["as asked", "none in a save", "one too few"],
)
def test_kills_that_were_asked_for_and_did_not_come_are_a_failure(
    monkeypatch, capsys, moments, status
):
    spec = importlib.util.spec_from_file_location("kill_and_resume", SCRIPT)
    script = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(script)
    left = iter(moments)
    outcome = {"step": 1, "leaves": [], "losses": [(1, 2.0, 0.5)]}
    for name, stand_in in {
        "prepare": lambda *args: None,
        "start": lambda *args: SimpleNamespace(wait=lambda: 0),
        "wait_for_training": lambda *args: None,
        "kill_once": lambda *args: {"moment": next(left)},
        "outcome": lambda *args: outcome,
    }.items():
        monkeypatch.setattr(script, name, stand_in)
    monkeypatch.setattr(sys, "argv", ["kill_and_resume.py", "--kills=20"])
    assert script.main() == status
    assert json.loads(capsys.readouterr().out)["every step once"] is True
