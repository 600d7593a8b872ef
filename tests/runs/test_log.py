"""log.txt holds what the user was told, with times."""

import re

from transformer_jax.runs.log import RunLog


def test_lines_wait_for_the_folder_and_carry_the_time(tmp_path, capsys):
    log = RunLog()
    log.say("before the folder is known")
    assert list(tmp_path.iterdir()) == []
    log.open(tmp_path)
    log.say("two\nlines")
    log.keep("error: told elsewhere")
    log.close()
    told = capsys.readouterr().err
    assert "told elsewhere" not in told and "before the folder is known\n" in told
    stamp = r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d "
    lines = (tmp_path / "log.txt").read_text().splitlines()
    assert all(re.match(stamp, line) for line in lines)
    texts = [re.sub(stamp, "", line, count=1) for line in lines]
    assert texts == ["before the folder is known", "two", "lines", "error: told elsewhere"]


def test_a_run_goes_on_in_the_same_log(tmp_path):
    for text in ("first start", "second start"):
        log = RunLog()
        log.open(tmp_path)
        log.say(text)
        log.close()
    assert len((tmp_path / "log.txt").read_text().splitlines()) == 2


def test_other_processes_than_the_first_are_silent(tmp_path, capsys):
    log = RunLog(quiet=True)
    log.open(tmp_path)
    log.say("nothing")
    log.close()
    assert capsys.readouterr().err == "" and list(tmp_path.iterdir()) == []
