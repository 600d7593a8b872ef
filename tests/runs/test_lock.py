"""One run per folder, and no lock outlives its process."""

import errno
import fcntl
import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from transformer_jax.errors import UserError
from transformer_jax.runs.lock import only_run

ROOT = Path(__file__).parents[2]

HOLDER = """
import sys, time
from transformer_jax.runs.lock import only_run
with only_run(sys.argv[1]):
    print("held", flush=True)
    time.sleep(600)
"""


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


def test_the_second_run_is_refused_and_told_who_holds_the_folder(tmp_path, holder):
    with pytest.raises(UserError, match=f"process {holder.pid} on ") as error, only_run(tmp_path):
        pass
    assert "\n" not in str(error.value) and str(tmp_path) in str(error.value)


def test_sigkill_lets_go(tmp_path, holder):
    holder.send_signal(signal.SIGKILL)
    holder.wait()
    with only_run(tmp_path):
        pass


def test_whoever_holds_the_folder_may_ask_again_but_no_other_thread(tmp_path):
    refused = []

    def other():
        try:
            with only_run(tmp_path):
                pass
        except UserError as error:
            refused.append(error)

    with only_run(tmp_path), only_run(tmp_path):
        thread = threading.Thread(target=other)
        thread.start()
        thread.join()
    assert len(refused) == 1
    with only_run(tmp_path):
        pass


def test_a_file_system_without_locks_is_used_and_said_so(tmp_path, monkeypatch):
    def refuse(descriptor, operation):
        raise OSError(errno.ENOLCK, "No locks available")

    monkeypatch.setattr(fcntl, "flock", refuse)
    said = []
    with only_run(tmp_path, said.append):
        pass
    assert len(said) == 1 and "No locks available" in said[0]
