"""Plans for devices that are not here, whose compilers are in the environment of `./run plans`."""

import importlib.util
import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from transformer_jax.mixers.registry import CROSS_MIXERS, MIXERS

ROOT = Path(__file__).parents[2]
ENVIRONMENT = {**os.environ, "JAX_PLATFORMS": "cpu", "TPU_SKIP_MDS_QUERY": "1"}
ONE_LAYER = ("--config.model.encoder.num_layers=1", "--config.model.decoder.num_layers=1")
#: What a plan says at its start, and the lines of XLA's alarm that a compilation is slow, which
#: happens on a busy machine.
EXPECTED = re.compile(
    r"compiling the training step and the searches|"
    r".*slow_operation_alarm\.cc|\*+$|\[Compiling module .*Very slow compile\?|The operation took |"
    r"WARNING: All log messages before absl::InitializeLog"
)


def skip_without(module):
    """Skips the test if a compiler is not installed."""
    if importlib.util.find_spec(module) is None:
        pytest.skip(f"no {module}: use ./run plans")


def _run(*arguments, timeout):
    return subprocess.run(
        [sys.executable, *arguments],
        cwd=ROOT,
        env=ENVIRONMENT,
        capture_output=True,
        text=True,
        timeout=timeout,
        check=False,
    )


def run_plan(recipe, topology, *more):
    """Runs `train.py --plan` without a search for the largest batch."""
    flags = [f"--config=configs/{recipe}.py", "--plan", f"--plan_topology={topology}"]
    return _run("train.py", *flags, "--plan_no_search", *more, timeout=7200)


def plan(recipe, topology, *more):
    """The text of a plan that fits."""
    done = run_plan(recipe, topology, *more)
    assert done.returncode == 0, done.stdout + done.stderr[-2000:]
    unexpected = [line for line in done.stderr.splitlines() if not EXPECTED.match(line)]
    assert not any(unexpected), unexpected[-20:]
    return done.stdout


def printed(module, topology):
    """The JSON object that a module prints for these devices."""
    done = _run("-m", module, topology, timeout=1800)
    assert done.returncode == 0, done.stderr[-3000:]
    return json.loads(done.stdout.splitlines()[-1])


def check_refusal_of_a_large_batch(topology):
    """A batch that is too large ends with status 3 and advice."""
    tokens = "--config.batch.tokens=4000000"
    done = run_plan("wmt14_en_de_base", topology, *ONE_LAYER, tokens)
    assert done.returncode == 3, done.stdout + done.stderr[-2000:]
    assert "DOES NOT FIT" in done.stdout
    assert "--config.model.remat=true" in done.stdout


def mixer_keys():
    """Every mixer in each role it supports, as overrides of a recipe."""
    for name, cls in MIXERS.items():
        roles = [role for role in ("encoder", "decoder") if role not in cls.refuses]
        yield pytest.param([f"--config.model.{role}.mixers={name}" for role in roles], id=name)
    for name in CROSS_MIXERS:
        yield pytest.param([f"--config.model.cross={name}"], id=f"cross-{name}")
