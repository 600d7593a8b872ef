"""A disk that is full: one line, and what was whole stays whole."""

import contextlib
import errno
import json
import logging
import os
import resource
import time
from types import SimpleNamespace

import pytest

from tests.runs.test_damaged_checkpoints import items, reopened, save
from transformer_jax.errors import UserError
from transformer_jax.paths import as_path
from transformer_jax.runs import checkpoints as checkpoints_module
from transformer_jax.runs.checkpoints import Checkpoints, checkpoint_folder, checkpoint_steps
from transformer_jax.runs.damage import find_damage
from transformer_jax.runs.log import RunLog, log_to_console
from transformer_jax.runs.metrics import MetricsLog, read_metrics


@contextlib.contextmanager
def files_end_at(num_bytes):
    """No file can grow beyond so many bytes: the kernel refuses, as on a full disk."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (num_bytes, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


def test_a_checkpoint_that_does_not_fit(tmp_path, monkeypatch):
    folder = as_path(tmp_path)
    save(folder, 4)
    checkpoints = Checkpoints(folder, 5)
    with files_end_at(100), pytest.raises(UserError) as error:
        checkpoints.save(8, items(8), {"position": 8}, best=False)
        checkpoints.wait()
    text = str(error.value)
    assert "cannot save the checkpoint of step 8" in text and "steps 4 are whole" in text
    assert os.strerror(errno.EFBIG) in text and "\n" not in text and len(text) < 500
    assert checkpoint_steps(folder) == [4]
    assert find_damage(checkpoint_folder(folder, 4)) is None
    half, waits = folder / "checkpoints" / "8.orbax-checkpoint-tmp", []

    def late(seconds):
        """After `close` has waited a little, there is some of it again, and again after a pause."""
        time.sleep(seconds)  # Orbax's own threads write late, too
        waits.append(seconds)
        if len(waits) in (1, 4):
            half.mkdir(exist_ok=True)
            (half / "late").write_text("late")

    monkeypatch.setattr(checkpoints_module, "time", SimpleNamespace(sleep=late))
    with contextlib.suppress(UserError):
        checkpoints.close()
    assert len(waits) > 4
    assert [p.name for p in (folder / "checkpoints").iterdir()] == ["4"], "the rest takes room"
    save(folder, 8)
    assert reopened(folder) == 8


def test_a_note_that_cannot_be_written_is_one_line(tmp_path):
    checkpoints = Checkpoints(as_path(tmp_path), 5)
    (tmp_path / "last_checkpoint.json").mkdir()  # a folder where the file should be
    checkpoints.save(4, items(4), {"position": 4}, best=False)
    with pytest.raises(UserError, match=r"cannot write .*last_checkpoint\.json") as error:
        checkpoints.wait()
    assert "\n" not in str(error.value) and "the checkpoints are whole" in str(error.value)
    (tmp_path / "last_checkpoint.json").rmdir()
    checkpoints.close()
    assert reopened(tmp_path) == 4


def test_a_folder_that_may_not_be_written(tmp_path):
    (tmp_path / "checkpoints").write_text("a file where the folder should be")
    with pytest.raises(UserError, match="checkpoints"):
        Checkpoints(as_path(tmp_path), 5)


def test_metrics_stop_with_one_line_and_go_on_later(tmp_path):
    log = MetricsLog(as_path(tmp_path), 0)
    log.write(1, {"loss": 2.0})
    with files_end_at(4), pytest.raises(UserError, match=r"cannot write .*metrics\.jsonl"):
        log.write(2, {"loss": 1.0})
    log.close()
    again = MetricsLog(as_path(tmp_path), 2)
    again.write(3, {"loss": 0.5})
    again.close()
    assert [record["step"] for record in read_metrics(as_path(tmp_path))] == [1, 3]
    for line in (tmp_path / "metrics.jsonl").read_text().splitlines():
        json.loads(line)


def test_tensorboard_is_no_reason_to_stop(tmp_path, logged):
    (tmp_path / "tensorboard").write_text("a file where the folder should be")
    log = MetricsLog(as_path(tmp_path), 0)
    log.write(1, {"loss": 2.0})
    log.close()
    (line,) = logged()
    assert "TensorBoard" in line
    assert read_metrics(as_path(tmp_path)) == [{"step": 1, "loss": 2.0}]


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="needs /dev/full")
def test_the_log_is_no_reason_to_stop(tmp_path, capsys):
    (tmp_path / "log.txt").symlink_to("/dev/full")
    log_to_console()
    with RunLog() as log:
        log.open(as_path(tmp_path))
        logging.getLogger("transformer_jax").info("one")
        logging.getLogger("transformer_jax").info("two")
    error = capsys.readouterr().err.splitlines()
    assert "one" in error and "two" in error
    assert sum("no log from here on" in line for line in error) == 1
