"""train.py and eval.py in two real processes: what one process does, and stopping together."""

import json
import signal
import time
from pathlib import Path

import numpy as np
import pytest

from tests.parallel.test_processes import losses
from tests.toy_run import train_command
from transformer_jax.paths import as_path
from transformer_jax.runs.metrics import read_metrics

ROOT = Path(__file__).parents[2]

KEYS = {
    "batch.row_multiple": 2,
    "decode.method": "beam(beam_size=2)",
    "train.steps": 12,
    "train.evaluate_every": 6,
    "train.checkpoint_every": 5,
    "train.log_every": 1,
}


def train(place, workdir, **keys):
    """The words of a training with other `train` keys."""
    more = KEYS | {f"train.{key}": value for key, value in keys.items()}
    flags = (f"--config.{key}={value}" for key, value in more.items())
    return [ROOT / "train.py", *train_command(place, workdir, *flags)[1:]]


def finish(processes, status=0):
    """What each wrote to standard output, once all have ended with the status."""
    deadline = time.monotonic() + 900
    results = [each.communicate(timeout=deadline - time.monotonic()) for each in processes]
    for process, (_, error) in zip(processes, results, strict=True):
        assert process.returncode == status, error[-3000:]
    return [output for output, _ in results]


@pytest.mark.slow
def test_two_processes_train_and_score_as_one_does(toy_place, tmp_path, start):
    reports = {}
    for count in (1, 2):
        workdir = tmp_path / str(count)
        # Measuring the speed together, where more steps would fit, changes nothing.
        minutes = {"minutes": 1000} if count == 2 else {}
        finish(start(count, *train(toy_place, workdir, **minutes)))
        files = (f"--source={toy_place / 'test.en'}", f"--reference={toy_place / 'test.de'}")
        first, *others = finish(
            start(
                count,
                ROOT / "eval.py",
                f"--workdir={workdir}",
                "--checkpoint=latest",
                "--json",
                *files,
            )
        )
        assert others == [""] * (count - 1), "only the first process reports"
        reports[count] = json.loads(first)
    one, two = tmp_path / "1", tmp_path / "2"

    assert list(losses(two)) == list(losses(one)) == list(range(1, 13))
    np.testing.assert_allclose(list(losses(two).values()), list(losses(one).values()), atol=1e-5)
    bleu = [
        [r["validation.bleu"] for r in read_metrics(as_path(w)) if "validation.bleu" in r]
        for w in (one, two)
    ]
    assert bleu[0] == bleu[1] and len(bleu[0]) == 2
    counted = [
        [
            line.split(maxsplit=2)[2]
            for line in (w / "log.txt").read_text().splitlines()
            if "learning the vocabulary" in line or "first step done" in line or "BLEU" in line
        ]
        for w in (one, two)
    ]
    assert len(counted[1]) == len(counted[0]) == 4, counted

    model = "tokenizer/joint.model"
    assert (two / model).read_bytes() == (one / model).read_bytes()
    assert reports[2]["num_sentences"] == 20
    assert reports[2]["scores"] == reports[1]["scores"]
    texts = [Path(reports[count]["translations"]).read_text() for count in (1, 2)]
    assert texts[0] == texts[1] and len(texts[0].splitlines()) == 20


def wait_for_step(processes, workdir, step):
    deadline = time.monotonic() + 600
    while max(losses(workdir), default=0) < step:
        assert time.monotonic() < deadline
        assert [each.poll() for each in processes] == [None] * len(processes)
        time.sleep(0.05)


@pytest.mark.slow
def test_a_signal_to_one_of_two_stops_both_and_they_continue_exactly(toy_place, tmp_path, start):
    """Also after a resume, and with checkpoints all the time. (Ctrl-C is a SIGTERM to itself.)"""
    workdir = tmp_path / "run"
    long = {"steps": 100_000, "evaluate_every": 100_000}
    last = 0
    for number, to in ((signal.SIGTERM, 1), (signal.SIGINT, 0)):
        processes = start(2, *train(toy_place, workdir, **long))
        wait_for_step(processes, workdir, last + 12)
        processes[to].send_signal(number)
        asked = time.monotonic()
        for process in processes:
            assert process.wait(timeout=asked + 120 - time.monotonic()) == 143
        print(f"both had saved and ended {time.monotonic() - asked:.1f} s after the signal")
        newest = max(int(path.name) for path in (workdir / "checkpoints").iterdir())
        assert newest == max(losses(workdir)) > last
        last = newest
    short = long | {"steps": last + 2}
    finish(start(2, *train(toy_place, workdir, **short)))
    finish(start(2, *train(toy_place, tmp_path / "undisturbed", **short)))
    assert losses(workdir) == losses(tmp_path / "undisturbed")
    assert list(losses(workdir)) == list(range(1, last + 3)), "a step is missing or occurs twice"
