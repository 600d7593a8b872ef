"""A run in a bucket: what holds on a disk holds where nothing can be renamed, added to or locked.

The bucket is `bucket.py`'s; TensorStore's own driver for Cloud Storage talks to it.
"""

import json
import logging
import sys
import time
import types
from dataclasses import replace
from pathlib import Path

import jax
import numpy as np
import pytest

import transformer_jax as tj
from tests.runs.test_damaged_checkpoints import items, reopened, save
from tests.toy_run import train_command
from tests.training import toy
from transformer_jax import paths
from transformer_jax.errors import UserError
from transformer_jax.paths import as_path
from transformer_jax.runs import lock, log as run_log
from transformer_jax.runs.checkpoints import Checkpoints, checkpoint_steps
from transformer_jax.runs.log import RunLog
from transformer_jax.runs.metrics import read_metrics
from transformer_jax.training.loop import fit

RUN = "gs://bucket/runs/one"


def train(batches):
    return fit(
        toy.MODEL,
        replace(toy.TRAIN, steps=8),
        batches,
        workdir=RUN,
        evaluate=lambda params, step: {"bleu": 100.0 / step},
    )


def names(store, folder):
    """The names in a folder of the run."""
    start = f"bucket/runs/one/{folder}/"
    return sorted({name.removeprefix(start).split("/")[0] for name in store.names(start)})


def test_killed_and_continued_is_bit_identical_and_no_record_is_missing(store, logged):
    """A kill leaves the objects that were there at that moment."""
    lock._warn.cache_clear()  # which another test may have filled
    left = {}

    def batches(position):
        for batch in toy.batches_from(position):
            if position == 6:
                while "bucket/runs/one/checkpoints/4/commit_success.txt" not in store.objects:
                    time.sleep(0.01)
                left.update(store.objects)
            yield batch
            position += 1

    undisturbed = train(batches)
    assert sum("no lock" in line for line in logged()) == 1
    assert names(store, "checkpoints") == ["4", "8"]
    (events,) = names(store, "tensorboard")
    while int(time.time()) <= int(events.split(".")[3]):  # its second: part of the file's name
        time.sleep(0.01)

    store.objects = left
    assert checkpoint_steps(as_path(RUN)) == [4]
    before = [r for r in read_metrics(as_path(RUN)) if r["step"] <= 4]
    assert [r["step"] for r in before] == [1, 3, 4]
    continued = train(toy.batches_from)
    jax.tree.map(np.testing.assert_array_equal, continued, undisturbed)
    assert "continuing after step 4" in logged()
    records = read_metrics(as_path(RUN))
    assert records[:3] == before
    assert [r["step"] for r in records if "loss" in r] == [3, 6, 8]
    assert len(names(store, "tensorboard")) == 2  # a file for each start
    assert not Path("gs:").exists()


def test_a_kill_at_any_point_of_a_save_leaves_a_whole_checkpoint(store):
    save(RUN, 4)
    left = []
    store.after_write = lambda: left.append(dict(store.objects))
    save(RUN, 8, best=[8])
    store.after_write = lambda: None
    newest = []
    for objects in [*left[:: len(left) // 9], left[-1]]:  # the last write seals it
        store.objects = dict(objects)
        newest.append(reopened(RUN))
        assert set(names(store, "checkpoints")) <= {"4", "8"}
        held = [n for n in store.names("bucket/runs/one/checkpoints/8/")]
        assert not held or "bucket/runs/one/checkpoints/8/commit_success.txt" in held
    assert newest == sorted(newest) and set(newest) == {4, 8}
    save(RUN, 8, 12)  # over what the last of the kills left
    assert reopened(RUN) == 12


def test_a_damaged_checkpoint_is_passed_over_and_moves_aside(store, logged):
    save(RUN, 4, 8)
    name = next(n for n in store.names("bucket/runs/one/checkpoints/8/params/d/"))
    content = bytearray(store.objects[name])
    content[len(content) // 2] ^= 0x10
    store.objects[name] = bytes(content)
    assert reopened(RUN) == 4
    (line,) = logged()
    assert "other bytes than were written" in line
    assert names(store, "checkpoints") == ["4"]
    assert store.objects[name.replace("/checkpoints/8/", "/damaged/8/")] == content


def test_what_goes_wrong_in_a_save_is_one_line(store):
    save(RUN, 4)

    def fails(checkpoints, words):
        with pytest.raises(UserError, match=words) as error:
            checkpoints.save(8, items(8), {"position": 8}, best=False)
            checkpoints.wait()
        assert "\n" not in str(error.value)

    def full():
        if "bucket/runs/one/checkpoints/8/manifest.json" in store.objects:
            raise RuntimeError("403 Forbidden: no more\nof that")

    def silent(*args):
        raise RuntimeError("503 Service Unavailable")

    checkpoints = Checkpoints(as_path(RUN), 5)
    store.after_write = full
    fails(checkpoints, "403 Forbidden: no more; .* steps 4 are whole")
    store.after_write = lambda: None
    checkpoints.close()
    assert names(store, "checkpoints") == ["4"], "half a checkpoint is left"
    assert reopened(RUN) == 4
    checkpoints = Checkpoints(as_path(RUN), 5)
    store.put = store.names = silent
    fails(checkpoints, "503 Service Unavailable; the earlier ones cannot be listed now")
    del store.put, store.names
    checkpoints.close()
    assert reopened(RUN) == 4


def test_the_log_is_uploaded_now_and_then_and_at_the_end(store, monkeypatch):
    now = 0.0
    clock = types.SimpleNamespace(
        monotonic=lambda: now, strftime=time.strftime, localtime=time.localtime
    )
    monkeypatch.setattr(run_log, "time", clock)
    logger = logging.getLogger("transformer_jax")
    with RunLog() as log:
        logger.info("one")
        log.open(as_path(RUN))
        assert store.names() == []
        now = 31.0
        logger.info("two")
        assert store.objects["bucket/runs/one/log.txt"].count(b"\n") == 2
        logger.info("three")
        assert store.objects["bucket/runs/one/log.txt"].count(b"\n") == 2
    with RunLog() as log:
        log.open(as_path(RUN))
        logger.info("four")
    lines = store.objects["bucket/runs/one/log.txt"].decode().splitlines()
    assert [line.split()[-1] for line in lines] == ["one", "two", "three", "four"]


@pytest.mark.slow
def test_train_eval_translate_and_open(store, toy_place, command):
    source, target = toy_place / "test.en", toy_place / "test.de"
    words = train_command(toy_place, RUN, "--config.train.steps=4")
    assert command(*words)[0] == 0
    held = {name.removeprefix("bucket/runs/one/") for name in store.names()}
    assert {
        "config.json",
        "tokenizer/joint.model",
        "metrics.jsonl",
        "log.txt",
        "checkpoints/4/manifest.json",
        "last_checkpoint.json",
    } <= held
    status, _, error = command(*words, "--config.train.seed=8")
    assert status == 2 and "another config (train.seed" in error
    log = store.objects["bucket/runs/one/log.txt"].decode()
    assert "validation BLEU" in log
    assert command("inspect", f"--workdir={RUN}")[0] == 0
    pictures = {f"bucket/runs/one/plots/{name}.png" for name in ("training", "cross_attention")}
    assert pictures <= set(store.names())

    files = [f"--source={source}", f"--reference={target}"]
    report = json.loads(command("eval", f"--workdir={RUN}", *files, "--json")[1])
    scores = json.loads(store.objects["bucket/runs/one/scores.json"])
    assert scores == {"test.en.best": report}
    assert report["translations"] == f"{RUN}/translations/test.en.best.txt"
    written = store.objects["bucket/runs/one/translations/test.en.best.txt"].decode()
    assert len(written.splitlines()) == 20

    words = ["translate", f"--workdir={RUN}", "--checkpoint=latest"]
    assert command(*words, stdin=source.read_bytes())[1] == written
    assert tj.open_run(RUN).translator("4").model.members[0].d_model == 16

    more = ["--config.train.steps=1", f"--config.train.init_from={RUN}"]
    assert command(*train_command(toy_place, f"{RUN}-tuned", *more))[0] == 0
    tuned = tj.open_run(f"{RUN}-tuned")
    assert tuned.config.train.init_from == RUN
    assert tuned.tokenizers().files() == tj.open_run(RUN).tokenizers().files()
    assert not Path("gs:").exists()


@pytest.mark.parametrize(
    ("url", "words"),
    [
        ("s3://bucket/run", "the only URLs supported are gs://"),
        (Path("gs://bucket/run"), "pass this one as a str"),
        ("gs://closed/run", "no access (401 Unauthorized)"),
    ],
)
def test_what_cannot_be_a_run_folder_is_one_line(store, monkeypatch, url, words):
    def names(prefix=""):
        raise RuntimeError("401 Unauthorized\nat some length")

    monkeypatch.setattr(store, "names", names)
    with pytest.raises(UserError) as error:
        as_path(url)
    assert words in str(error.value) and "\n" not in str(error.value)


def test_missing_packages_are_named(monkeypatch, command):
    monkeypatch.setattr(paths.importlib.util, "find_spec", lambda name: None)
    monkeypatch.setitem(sys.modules, "gcsfs", None)
    paths._check_bucket.cache_clear()
    status, _, line = command("eval", "--workdir=gs://bucket/run")
    assert status == 2 and line.count("\n") == 1
    assert "a bucket needs gcsfs" in line and "pip install 'transformer-jax[gcs]'" in line
