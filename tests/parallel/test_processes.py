"""Several real processes on this machine train what one process trains, and end together."""

import json
import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

from tests.devices import environment
from transformer_jax.paths import as_path
from transformer_jax.runs.damage import find_damage
from transformer_jax.runs.metrics import read_metrics

SCRIPT = Path(__file__).with_name("several.py")


def free_address():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return f"127.0.0.1:{probe.getsockname()[1]}"


def start(folder, count, steps, *options, devices=1):
    address = free_address()
    return [
        subprocess.Popen(
            [sys.executable, SCRIPT, folder, address, *map(str, (count, index, steps)), *options],
            env=environment(devices),
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for index in range(count)
    ]


def run(folder, count, steps, *options, devices=1):
    """What each process reports."""
    processes = start(folder, count, steps, *options, devices=devices)
    results = [process.communicate(timeout=500) for process in processes]
    for process, (_, error) in zip(processes, results, strict=True):
        assert process.returncode == 0, error[-3000:]
    return [json.loads(output.splitlines()[-1]) for output, _ in results]


def losses(folder):
    return {r["step"]: r["loss"] for r in read_metrics(as_path(folder)) if "loss" in r}


@pytest.fixture(scope="module")
def alone(tmp_path_factory):
    """One process with one device: its folder and its report."""
    folder = tmp_path_factory.mktemp("alone")
    return folder, run(folder, 1, 12)[0]


def assert_same_training(folder, reports, alone):
    expected_folder, expected = alone
    for report in reports:
        np.testing.assert_allclose(report["sums"], expected["sums"], rtol=1e-5)
        last_texts, *last_scores = report["evaluated"][-1]
        wanted_texts, *wanted_scores = expected["evaluated"][-1]
        assert last_texts == wanted_texts
        np.testing.assert_allclose(last_scores, wanted_scores, atol=1e-5)
    measured, expected = losses(folder), losses(expected_folder)
    assert list(measured) == list(expected) == list(range(1, 13)), (
        "a step is missing or occurs twice"
    )
    np.testing.assert_allclose(list(measured.values()), list(expected.values()), atol=1e-5)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("count", "devices", "options"), [(2, 1, ()), (4, 2, ("fsdp",))], ids=["2", "4 with fsdp"]
)
def test_the_result_is_that_of_one_process(tmp_path, alone, count, devices, options):
    reports = run(tmp_path, count, 12, *options, devices=devices)
    assert [report["learned"] for report in reports] == [1] + [0] * (count - 1)
    assert {report["devices"] for report in reports} == {count * devices}
    assert_same_training(tmp_path, reports, alone)
    newest = tmp_path / "checkpoints" / "12"
    assert find_damage(newest) is None
    assert (newest / "tokenizer" / "joint.model").read_bytes() == (b"a tokenizer" * 10)[:100]
    if options:  # each process held and wrote its own part of the split parameters
        assert max(report["share"] for report in reports) < 0.5
        writers = {p.name for p in (newest / "params").glob("ocdbt.process_*")}
        assert len(writers) == count


@pytest.mark.slow
def test_one_two_one_processes(tmp_path, alone):
    for count, steps in ((1, 4), (2, 8), (1, 12)):
        reports = run(tmp_path, count, steps)
    assert_same_training(tmp_path, reports, alone)


@pytest.mark.slow
@pytest.mark.parametrize("killed", [3, 0], ids=["the last", "the coordinator"])
def test_when_one_of_four_is_killed_the_others_end_and_the_job_continues(tmp_path, alone, killed):
    processes = start(tmp_path, 4, 12, f"kill {killed}")
    others = [process for process in processes if process is not processes[killed]]
    assert processes[killed].wait(timeout=400) == -signal.SIGKILL
    died = time.monotonic()
    for process in others:
        assert process.wait(timeout=died + 90 - time.monotonic()) != 0
    print(f"the others ended {time.monotonic() - died:.1f} s after the one that was killed")
    for process in processes:
        _, error = process.communicate()
        assert process is processes[killed] or error.strip(), "it ended without a word"
        print(process.returncode, *error.strip().splitlines()[-1:])
    assert_same_training(tmp_path, run(tmp_path, 4, 12), alone)


# Steps of 20 ms, after each of which Orbax saves: it asks too, for the step of the whole run.
STOPPING = """
import json, os, signal, sys, time
from jax.experimental import multihost_utils
from transformer_jax.parallel import processes

processes.start(sys.argv[1], 2, int(sys.argv[2]))
for call in range(1, 1500):
    time.sleep(0.02)
    if processes.stop_agreed(call):
        break
    assert not multihost_utils.reached_preemption_sync_point(10_000 + call)
    if call == 50 and sys.argv[2] == "1":
        os.kill(os.getpid(), signal.SIGTERM)
print(json.dumps(call), flush=True)
"""


@pytest.mark.slow
def test_after_a_resume_all_stop_soon_and_at_the_same_step():
    address = free_address()
    processes = [
        subprocess.Popen(
            [sys.executable, "-c", STOPPING, address, index],
            env={**os.environ, "JAX_PLATFORMS": "cpu", "PYTHONPATH": str(SCRIPT.parents[2])},
            stdout=subprocess.PIPE,
            text=True,
        )
        for index in "01"
    ]
    first, second = (json.loads(each.communicate(timeout=200)[0]) for each in processes)
    assert first == second and 50 < first < 1000
