"""One run per folder, and no lock outlives its process."""

import errno
import fcntl
import signal
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from transformer_jax.errors import UserError
from transformer_jax.paths import as_path
from transformer_jax.runs.lock import only_run

ROOT = Path(__file__).parents[2]

HOLDER = """
import sys, time
from transformer_jax.paths import as_path
from transformer_jax.runs.lock import only_run
with only_run(as_path(sys.argv[1])):
    print("held", flush=True)
    time.sleep(600)
"""


@pytest.fixture
def folder(tmp_path):
    return as_path(tmp_path)


@pytest.fixture
def holder(tmp_path):
    process = subprocess.Popen(
        [sys.executable, "-c", HOLDER, str(tmp_path)], stdout=subprocess.PIPE, cwd=ROOT
    )
    assert process.stdout.readline() == b"held\n"
    yield process
    process.kill()
    process.wait()
    process.stdout.close()


def test_the_second_run_is_refused_and_told_who_holds_the_folder(folder, holder):
    with pytest.raises(UserError, match=f"process {holder.pid} on ") as error, only_run(folder):
        pass
    assert "\n" not in str(error.value) and str(folder) in str(error.value)


def test_sigkill_releases_the_lock(folder, holder):
    holder.send_signal(signal.SIGKILL)
    holder.wait()
    with only_run(folder):
        pass


def test_the_holder_may_enter_again_but_no_other_thread(folder):
    def enter():
        with only_run(folder):
            pass

    with only_run(folder), only_run(folder), ThreadPoolExecutor() as pool:
        assert isinstance(pool.submit(enter).exception(), UserError)
    enter()


def test_a_file_system_without_locks_is_used_with_a_warning(folder, monkeypatch, logged):
    def refuse(descriptor, operation):
        raise OSError(errno.ENOLCK, "No locks available")

    monkeypatch.setattr(fcntl, "flock", refuse)
    with only_run(folder):
        pass
    (line,) = logged()
    assert "No locks available" in line
