"""The loop: killed and continued equals undisturbed, and the run folder's contract."""

import itertools
import os
import shutil
import signal
import subprocess
import sys
import threading
from dataclasses import replace
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tests.quick import quick
from tests.training import toy
from transformer_jax.config import Config, to_json
from transformer_jax.errors import UserError
from transformer_jax.metrics.metricx import MetricX
from transformer_jax.models.flops import train_step_flops
from transformer_jax.parallel.mesh import MeshConfig, make_mesh
from transformer_jax.paths import as_path
from transformer_jax.runs.checkpoints import checkpoint_steps
from transformer_jax.runs.folder import open_run
from transformer_jax.runs.metrics import MetricsLog, read_metrics
from transformer_jax.training import reporter
from transformer_jax.training.loop import Feed, Session, fit
from transformer_jax.training.reporter import Reporter
from transformer_jax.training.trainer import Trainer

TRAIN = replace(toy.TRAIN, ema_decay=0.9)


def evaluate(params, step):
    # A score that depends on the parameters and is best at step 4.
    return {"bleu": 100.0 / step + float(np.asarray(jax.tree.leaves(params)[0]).mean())}


def run(workdir=None, train=TRAIN, model=toy.MODEL, **kwargs):
    return fit(model, train, toy.batches_from, workdir=workdir, evaluate=evaluate, **kwargs)


def assert_same(one, other):
    jax.tree.map(np.testing.assert_array_equal, one, other)


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory):
    folder = tmp_path_factory.mktemp("undisturbed")
    return folder, run(folder)


@pytest.mark.parametrize("stop_after", quick([1, 4, 6], 6))
def test_stopped_and_continued_is_bit_identical(tmp_path, undisturbed, stop_after):
    calls = iter(range(1, 100))
    stopped = run(tmp_path, should_stop=lambda: next(calls) >= stop_after)
    assert stopped.step == stop_after
    assert_same(run(tmp_path), undisturbed[1])
    assert_same(*(opened(each).params("latest") for each in (tmp_path, undisturbed[0])))


def opened(folder, model=toy.MODEL):
    """The run, with the config that a command would have written."""
    (folder / "config.json").write_text(to_json(Config(model=model, train=TRAIN)))
    return open_run(folder)


def test_the_average_of_bfloat16_parameters_is_kept_in_float32(tmp_path):
    """Checkpoints hold it so; who translates gets the dtype of the parameters."""
    model = replace(toy.MODEL, param_dtype="bfloat16")
    whole = run(tmp_path / "whole", model=model)
    assert {leaf.dtype for leaf in jax.tree.leaves(whole.ema)} == {jnp.dtype("float32")}
    calls = iter(range(1, 100))
    run(tmp_path / "stopped", model=model, should_stop=lambda: next(calls) >= 6)
    assert_same(run(tmp_path / "stopped", model=model), whole)
    found = opened(tmp_path / "whole", model)
    latest, before = found.params("latest"), found.params("8")
    jax.tree.map(partial(np.testing.assert_array_equal, strict=True), latest, whole.eval_params)

    def mean(x, y):
        return (np.float32(x) + np.float32(y)) / 2

    jax.tree.map(
        lambda got, x, y: np.testing.assert_array_equal(got, mean(x, y).astype(x.dtype)),
        found.params("average:2"),
        latest,
        before,
    )


KILLED = """
import os, signal
from tests.training import test_loop, toy
def batches(position):
    for batch in toy.batches_from(position):
        if position == {kill_at}:
            os.kill(os.getpid(), signal.SIGKILL)
        yield batch
        position += 1
test_loop.fit(toy.MODEL, test_loop.TRAIN, batches, workdir={folder!r},
              evaluate=test_loop.evaluate)
"""


def test_killed_and_continued_is_bit_identical(tmp_path, undisturbed):
    code = KILLED.format(kill_at=10, folder=str(tmp_path))
    done = subprocess.run([sys.executable, "-c", code], env={**os.environ}, timeout=300)
    assert done.returncode == -signal.SIGKILL
    assert_same(run(tmp_path), undisturbed[1])
    steps = [r["step"] for r in opened(tmp_path).metrics() if "loss" in r]
    assert steps == sorted(set(steps)), "a step is recorded twice"


def test_step_0_stands_once_in_the_metrics(tmp_path):
    """A run from `init_from`, killed before its first checkpoint, evaluates at step 0 again."""
    for minutes in (0.5, 0.6):
        log = MetricsLog(as_path(tmp_path), 0)
        log.write(0, {"validation.bleu": 1.0, "minutes": minutes})
        log.write(50, {"loss": 1.0, "minutes": minutes})
        log.close()
    assert [each["step"] for each in read_metrics(as_path(tmp_path))] == [0, 50]
    assert log.minutes_before == 0.0
    log = MetricsLog(as_path(tmp_path), 49)  # minutes go on where the kept records end
    log.close()
    assert log.minutes_before == 0.6


def test_checkpoints_kept_are_the_last_and_the_best(undisturbed):
    folder, state = undisturbed
    run = opened(folder)
    assert run.checkpoints() == [4, 8, 12]  # 4 is the best
    latest = run.params("latest")
    assert run.select("latest").name == "step-12"
    assert_same(latest, state.ema)
    older = run.params("8")
    average = run.params("average:2")
    assert run.select("average:2").name == "average-2-to-step-12"
    jax.tree.map(
        lambda a, x, y: np.testing.assert_allclose(a, (x + y) / 2, rtol=1e-6),
        average,
        latest,
        older,
    )
    with pytest.raises(UserError, match=r"only 2 checkpoints are kept here \(steps 8, 12\)"):
        run.params("average:3")  # the best one is older than the last two
    assert run.select("best").name == "best-step-4"


def test_damage_is_refused_with_one_line_where_it_is_asked_for(tmp_path, undisturbed, logged):
    shutil.copytree(undisturbed[0], tmp_path / "run")
    run = opened(tmp_path / "run")

    def damage(step, item):
        folder = tmp_path / "run" / "checkpoints" / str(step) / item
        path = max((p for p in folder.rglob("*") if p.is_file()), key=lambda p: p.stat().st_size)
        path.write_bytes(path.read_bytes()[:-1])

    def refused(which, words):
        with pytest.raises(UserError, match=words) as error:
            run.params(which)
        assert "\n" not in str(error.value) and f"checkpoint={which}" in str(error.value)

    damage(4, "ema")
    refused("best", "checkpoints/4 is damaged .*bytes instead of")
    damage(12, "ema")
    refused("12", "checkpoints/12 is damaged")
    refused("average:2", "checkpoints/12 is damaged")
    assert run.select("latest").name == "step-8"
    (line,) = logged()
    assert "using step 8" in line
    damage(12, "meta")  # the newest checkpoint says which one is the best
    refused("best", "checkpoints/12, names the best one, but meta/metadata has")
    refused("7", "not kept here; there are steps 4, 8, 12")
    shutil.rmtree(tmp_path / "run" / "checkpoints" / "12")
    shutil.rmtree(tmp_path / "run" / "checkpoints" / "4")
    refused("best", "it names step 4, which is gone")


def test_loading_a_run_prints_nothing(undisturbed, capfd):
    opened(undisturbed[0]).params("best")
    assert capfd.readouterr() == ("", "")


def test_the_time_left_counts_the_steps_alone(tmp_path, monkeypatch, capsys):
    """Without the first step, compilations and evaluations; in the record and in the bar."""
    now = [0.0]
    monkeypatch.setattr(reporter.time, "perf_counter", lambda: now[0])
    metrics = dict.fromkeys(("loss_sum", "nll_sum", "tokens", "grad_norm"), jnp.ones(()))
    metrics |= {"finite": True, "skipped": 0, "skipped_in_a_row": 0}
    train = replace(TRAIN, log_every=4)
    share = {"share_of_peak": lambda shapes, seconds: len(shapes) / seconds}
    report = Reporter(train, lambda _: 0.1, as_path(tmp_path), 0, began=0.0, progress=True, **share)
    wide = toy.batch(0) | {"target": np.zeros((toy.ROWS, toy.LENGTH + 2))}
    for step, batch in enumerate([toy.batch(0), toy.batch(1), wide, wide], start=1):
        with report.compiling(batch):
            now[0] += 500.0 if step in (1, 3) else 2.0
        report.log(step, metrics)
        with report.pause():
            now[0] += 100.0
    report.close()
    record = read_metrics(as_path(tmp_path))[-1]
    assert record["steps_per_second"] == record["share_of_peak"] == 0.75  # 3 steps in 4 s
    assert "11 s left, loss 1.000, 1 tokens/s" in capsys.readouterr().err


def test_a_known_peak_is_logged_with_its_share_and_steps_are_profiled(tmp_path):
    train = replace(TRAIN, steps=15)
    trainer = Trainer(toy.MODEL, train, make_mesh(MeshConfig()))
    Session(trainer, Feed(toy.batches_from), as_path(tmp_path), peak=1e9, profile=3).train()
    timed = [r for r in read_metrics(as_path(tmp_path)) if "steps_per_second" in r]
    flops = train_step_flops(toy.MODEL, toy.ROWS, toy.LENGTH)
    shares = [record["share_of_peak"] for record in timed]
    assert shares == pytest.approx([flops * r["steps_per_second"] / 1e9 for r in timed])
    (trace,) = (tmp_path / "profile").rglob("*.xplane.pb")
    planes = jax.profiler.ProfileData.from_file(str(trace)).planes
    lines = (line for plane in planes for line in plane.lines)
    traced = [dict(e.stats)["step_num"] for line in lines for e in line.events if e.name == "train"]
    assert traced == [12, 13, 14]
    assert list(trace.parent.glob("*.trace.json.gz"))  # which Perfetto opens


def test_early_stopping_waits_as_long_as_it_says(tmp_path, logged):
    train = replace(TRAIN, steps=40, evaluate_every=2, early_stopping=3, checkpoint_every=100)
    scores = iter([5.0, 7.0, 6.0, 6.0, 6.0, 9.0])
    kept = {"workdir": tmp_path, "evaluate": lambda params, step: {"bleu": next(scores)}}
    assert fit(toy.MODEL, train, toy.batches_from, **kept).step == 10
    expected = "stopped early: no better validation BLEU in 3 evaluations since step 4 (7.00)"
    assert logged()[-1] == expected
    again = run(tmp_path, train)
    assert logged()[-1] == expected
    assert again.step == 10, "a run that stopped early starts again when it is called again"


def test_what_selects_the_best_checkpoint_must_be_there():
    patient = replace(TRAIN, steps=2, evaluate_every=1, early_stopping=3)
    with pytest.raises(UserError, match="train.early_stopping=3: needs `evaluate`"):
        fit(toy.MODEL, patient, toy.batches_from)
    other = replace(TRAIN, steps=2, evaluate_every=1, best_by=MetricX("folder"))
    for train, name in ((patient, "bleu"), (other, "metricx")):
        with pytest.raises(UserError, match=f"train.best_by={name}: `evaluate` returned chrf"):
            fit(toy.MODEL, train, toy.batches_from, evaluate=lambda params, step: {"chrf": 1.0})
    train = replace(other, best_by=TRAIN.best_by)  # nobody asked for a best one
    fit(toy.MODEL, train, toy.batches_from, evaluate=lambda params, step: {"chrf": 1.0})


def test_a_run_is_not_continued_on_other_data(tmp_path):
    def train(steps, **identity):
        trainer = Trainer(toy.MODEL, replace(TRAIN, steps=steps), make_mesh(MeshConfig()))
        feed = Feed(toy.batches_from, identity)
        return Session(trainer, feed, workdir=as_path(tmp_path)).train()

    train(4, data="one")
    with pytest.raises(UserError, match="the data changed"):
        train(12, data="another")
    # What the checkpoint does not know cannot differ.
    assert train(12, data="one", text="two").step == 12


def test_batches_that_end_early_lose_nothing(tmp_path):
    def finite(position):
        return itertools.islice(toy.batches_from(position), max(0, 6 - position))

    for _ in range(2):  # and once more where nothing is left
        with pytest.raises(UserError, match=r"ended at position 6, before train.steps=12.*steps=6"):
            fit(toy.MODEL, TRAIN, finite, workdir=tmp_path)
    assert checkpoint_steps(as_path(tmp_path)) == [4, 6]


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

    fit(toy.MODEL, TRAIN, batches, workdir=tmp_path, should_stop=lambda: bool(seen))
    assert seen == ['{"step": 4}\n']


def test_a_run_that_starts_over_says_so(tmp_path, logged):
    folder = as_path(tmp_path)
    log = MetricsLog(folder, 0)
    log.write(3, {"loss": 2.0})
    log.close()
    MetricsLog(folder, 3).close()
    assert logged() == []
    MetricsLog(folder, 0).close()
    (line,) = logged()
    assert "starting over at step 0" in line and "reached step 3" in line and "\n" not in line
    assert read_metrics(folder) == []
