"""The loop: killed and continued equals undisturbed, and the run folder's contract."""

import itertools
import json
import os
import shutil
import signal
import subprocess
import sys
import threading
from dataclasses import replace

import jax
import numpy as np
import pytest

from tests.training import toy
from transformer_jax.config import Config, to_json
from transformer_jax.errors import UserError
from transformer_jax.runs.checkpoints import checkpoint_steps
from transformer_jax.runs.metrics import MetricsLog, read_metrics
from transformer_jax.runs.restore import restore_params
from transformer_jax.training.loop import fit

TRAIN = replace(toy.TRAIN, ema_decay=0.9)


def evaluate(params, step):
    # A score that depends on the parameters and is best at step 4.
    return {"bleu": 100.0 / step + float(np.asarray(jax.tree.leaves(params)[0]).mean())}


def run(workdir=None, train=TRAIN, **kwargs):
    return fit(
        toy.MODEL,
        train,
        toy.batches_from,
        workdir=workdir,
        progress=False,
        evaluate=evaluate,
        **kwargs,
    )


def assert_same(one, other):
    jax.tree.map(np.testing.assert_array_equal, one, other)


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory):
    folder = tmp_path_factory.mktemp("undisturbed")
    return folder, run(folder)


def test_workdir_changes_nothing(undisturbed):
    assert_same(run(None), undisturbed[1])


@pytest.mark.parametrize("stop_after", [pytest.param(1, marks=pytest.mark.slow), 4, 6])
def test_stopped_and_continued_is_bit_identical(tmp_path, undisturbed, stop_after):
    calls = iter(range(1, 100))
    stopped = run(tmp_path, should_stop=lambda: next(calls) >= stop_after)
    assert stopped.step == stop_after
    assert_same(run(tmp_path), undisturbed[1])
    assert_same(restore_params_of(tmp_path), restore_params_of(undisturbed[0]))


def restore_params_of(folder):
    (folder / "config.json").write_text(to_json(Config(model=toy.MODEL, train=TRAIN)))
    return restore_params(folder, "latest")[0]


KILLED = """
import os, signal
from tests.training import test_loop, toy
def batches(position):
    for batch in toy.batches_from(position):
        if position == {kill_at}:
            os.kill(os.getpid(), signal.SIGKILL)
        yield batch
        position += 1
test_loop.fit(toy.MODEL, test_loop.TRAIN, batches, workdir={folder!r}, progress=False,
              evaluate=test_loop.evaluate)
"""


def test_killed_and_continued_is_bit_identical(tmp_path, undisturbed):
    code = KILLED.format(kill_at=10, folder=str(tmp_path))
    done = subprocess.run([sys.executable, "-c", code], env={**os.environ}, timeout=300)
    assert done.returncode == -signal.SIGKILL
    assert_same(run(tmp_path), undisturbed[1])
    steps = [r["step"] for r in read_metrics(tmp_path) if "loss" in r]
    assert steps == sorted(set(steps)), "a step stands twice in the record"


@pytest.mark.slow
def test_what_was_lost_of_the_checkpoints_does_not_change_the_end(tmp_path, undisturbed):
    run(tmp_path, replace(TRAIN, steps=4))
    shutil.rmtree(tmp_path / "best" / "4")  # as if killed between the two copies
    assert_same(run(tmp_path), undisturbed[1])
    assert (tmp_path / "best" / "4").is_dir()

    for file in (tmp_path / "checkpoints" / "12" / "params" / "d").iterdir():
        file.write_bytes(file.read_bytes()[:-1])
    said = []
    assert_same(run(tmp_path, say=said.append), undisturbed[1])
    assert "bytes instead of" in said[0] and "step 8" in said[0]
    assert read_metrics(tmp_path)[-1]["step"] == 12


def test_checkpoints_kept_are_the_last_and_the_best(undisturbed):
    folder, state = undisturbed
    assert sorted(p.name for p in (folder / "checkpoints").iterdir()) == ["12", "8"]
    assert [p.name for p in (folder / "best").iterdir()] == ["4"]
    (folder / "config.json").write_text(to_json(Config(model=toy.MODEL, train=TRAIN)))
    latest, name = restore_params(folder, "latest")
    assert name == "step-12"
    assert_same(latest, state.ema)
    older, _ = restore_params(folder, "8")
    average, name = restore_params(folder, "average:2")
    assert name == "average-2-to-step-12"
    jax.tree.map(
        lambda a, x, y: np.testing.assert_allclose(a, (x + y) / 2, rtol=1e-6),
        average,
        latest,
        older,
    )
    with pytest.raises(UserError, match=r"only 2 checkpoints are kept here \(steps 8, 12\)"):
        restore_params(folder, "average:3")  # the best one is older than the last two
    assert restore_params(folder, "best")[1] == "best-step-4"


def test_metrics_are_json_lines_with_finite_numbers(undisturbed):
    folder, _ = undisturbed
    lines = (folder / "metrics.jsonl").read_text().splitlines()
    records = [json.loads(line) for line in lines]
    losses = [r for r in records if "loss" in r]
    assert [r["step"] for r in losses] == [3, 6, 9, 12]
    assert all(np.isfinite(list(r.values())).all() for r in losses)
    assert [r["step"] for r in records if "validation.bleu" in r] == [4, 8, 12]
    assert list((folder / "tensorboard").iterdir())


def test_early_stopping_waits_as_long_as_it_says(tmp_path):
    train = replace(TRAIN, steps=40, evaluate_every=2, early_stopping=3, checkpoint_every=100)
    scores = iter([5.0, 7.0, 6.0, 6.0, 6.0, 9.0])
    state = fit(
        toy.MODEL,
        train,
        toy.batches_from,
        workdir=tmp_path,
        progress=False,
        evaluate=lambda params, step: {"bleu": next(scores)},
    )
    assert state.step == 10
    again = fit(
        toy.MODEL,
        train,
        toy.batches_from,
        workdir=tmp_path,
        progress=False,
        evaluate=lambda params, step: {"bleu": 100.0},
    )
    assert again.step == 10, "a run that stopped early starts again when it is called again"


def test_rows_that_do_not_divide_are_refused():
    with pytest.raises(ValueError, match="3"):
        fit(toy.MODEL, replace(TRAIN, accumulate=3), toy.batches_from, progress=False)


def test_a_run_is_not_continued_on_other_data(tmp_path):
    short = replace(TRAIN, steps=4)
    run(tmp_path, short, meta={"identity": {"training data": "one"}})
    with pytest.raises(UserError, match="training data changed"):
        run(tmp_path, TRAIN, meta={"identity": {"training data": "another"}})
    # What an older checkpoint does not know cannot differ.
    more = {"training data": "one", "training text": "two"}
    assert run(tmp_path, TRAIN, meta={"identity": more}).step == 12


def test_batches_that_end_early_lose_nothing(tmp_path):
    def finite(position):
        return itertools.islice(toy.batches_from(position), max(0, 6 - position))

    for _ in range(2):  # and once more where nothing is left
        with pytest.raises(UserError, match=r"ended at position 6, before train.steps=12.*steps=6"):
            fit(toy.MODEL, TRAIN, finite, workdir=tmp_path, progress=False)
    assert checkpoint_steps(tmp_path / "checkpoints") == [4, 6]


def test_a_checkpoint_is_noted_as_soon_as_it_is_sealed(tmp_path):
    """So a kill after the first one leaves a folder that is known to have held a run."""
    seen = []

    def batches(position):
        for batch in toy.batches_from(position):
            if position == 5:  # after step 5; the save began after step 4
                for thread in threading.enumerate():
                    if thread.name == "save_finalize":
                        thread.join()
            if position == 6:
                seen.append((tmp_path / "last_checkpoint.json").read_text())
            yield batch
            position += 1

    fit(toy.MODEL, TRAIN, batches, workdir=tmp_path, progress=False, should_stop=lambda: bool(seen))
    assert seen == ['{"step": 4}\n']


def test_a_run_that_starts_over_says_so(tmp_path):
    said = []
    log = MetricsLog(tmp_path, 0, said.append)
    log.write(3, {"loss": 2.0})
    log.close()
    MetricsLog(tmp_path, 3, said.append).close()
    assert said == []
    MetricsLog(tmp_path, 0, said.append).close()
    (line,) = said
    assert "starting over at step 0" in line and "got to step 3" in line and "\n" not in line
    assert read_metrics(tmp_path) == []
