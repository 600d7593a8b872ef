"""log.txt holds the package's messages with times; the console shows them; libraries are silent."""

import logging
import re
import sys

import pytest

from transformer_jax.errors import UserError
from transformer_jax.paths import as_path
from transformer_jax.runs import log
from transformer_jax.runs.log import RunLog, log_to_console

LOGGER = logging.getLogger("transformer_jax.anything")
STAMP = r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d "


def texts(folder):
    lines = (folder / "log.txt").read_text().splitlines()
    assert all(re.match(STAMP, line) for line in lines)
    return [re.sub(STAMP, "", line, count=1) for line in lines]


def test_messages_wait_for_the_folder_and_carry_the_time(tmp_path):
    with RunLog() as run_log:
        LOGGER.info("before the folder is known")
        assert list(tmp_path.iterdir()) == []
        run_log.open(as_path(tmp_path))
        LOGGER.info("two\nlines")
        LOGGER.warning("careful")
        assert texts(tmp_path)[-1] == "note: careful", "written at once"
    LOGGER.info("after the run")
    with RunLog() as run_log:  # it continues
        run_log.open(as_path(tmp_path))
        LOGGER.info("again")
    first = ["before the folder is known", "two", "lines", "note: careful"]
    assert texts(tmp_path) == [*first, "again"]


def test_an_error_that_ends_the_run_is_logged_but_not_shown(tmp_path, capsys):
    log_to_console()
    with pytest.raises(UserError), RunLog() as run_log:
        run_log.open(as_path(tmp_path))
        raise UserError("no memory")
    with pytest.raises(ZeroDivisionError), RunLog() as run_log:
        run_log.open(as_path(tmp_path))
        _ = 1 / 0
    lines = texts(tmp_path)
    assert lines[0] == "error: no memory"
    assert lines[1] == "error" and lines[-1] == "ZeroDivisionError: division by zero"
    assert capsys.readouterr().err == ""


def test_a_reader_that_ends_leaves_no_traceback(tmp_path):
    with pytest.raises(BrokenPipeError), RunLog() as run_log:
        run_log.open(as_path(tmp_path))
        raise BrokenPipeError(32, "Broken pipe")
    assert texts(tmp_path) == ["stopped: nothing reads the messages any more"]


def test_a_refused_run_writes_nowhere(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UserError), RunLog():
        LOGGER.info("something")
        raise UserError("refused")
    assert list(tmp_path.iterdir()) == []


def test_a_library_is_silent_until_the_caller_asks(capfd):
    LOGGER.warning("nothing")
    assert capfd.readouterr() == ("", "")
    log_to_console()
    log_to_console()  # twice is once
    LOGGER.info("hello")
    LOGGER.warning("careful")
    assert capfd.readouterr().err == "hello\nnote: careful\n"


def test_a_handler_of_the_root_logger_does_not_show_messages_twice(capsys, monkeypatch):
    root = logging.getLogger()
    monkeypatch.setattr(root, "handlers", [logging.StreamHandler(sys.stderr)])  # absl adds one
    log_to_console()
    LOGGER.info("once")
    assert capsys.readouterr().err == "once\n"


def test_other_processes_than_the_first_are_silent(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(log, "is_first", lambda: False)
    log_to_console()
    with RunLog() as run_log:
        run_log.open(as_path(tmp_path))
        LOGGER.warning("nothing")
    assert capsys.readouterr().err == "" and list(tmp_path.iterdir()) == []
