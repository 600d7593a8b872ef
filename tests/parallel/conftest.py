"""Commands in several real processes."""

import os
import subprocess
import sys

import pytest

from tests.parallel.test_processes import free_address


@pytest.fixture
def start():
    """Starts Python with these words in so many processes; what is left ends with the test."""
    started = []

    def start(count, *words):
        shared = [f"--coordinator_address={free_address()}", f"--num_processes={count}"]
        flags = [[*shared, f"--process_id={i}"] for i in range(count)] if count > 1 else [[]]
        processes = [
            subprocess.Popen(
                [sys.executable, *words, *each],
                env={**os.environ, "JAX_PLATFORMS": "cpu"},
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                text=True,
            )
            for each in flags
        ]
        started.extend(processes)
        return processes

    yield start
    for process in started:
        process.kill()
        process.communicate()
