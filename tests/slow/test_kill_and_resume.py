"""Five random kills; docs/reliability.md has the result of thirty."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[2] / "benchmarks" / "kill_and_resume.py"


@pytest.mark.slow
def test_killed_at_random_moments_and_restarted():
    done = subprocess.run(
        [sys.executable, str(SCRIPT), "--kills=5", "--steps=150", "--seed=1"],
        capture_output=True,
        text=True,
        timeout=1500,
    )
    assert done.returncode == 0, done.stdout + done.stderr[-2000:]
    assert json.loads(done.stdout)["kills"] == 5
