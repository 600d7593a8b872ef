"""Processes with several virtual CPU devices."""

import json
import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[1]


def environment(devices):
    """The environment of a process whose CPU counts as this many devices.

    XLA ends a process when a device waits for the others for 40 seconds. On two cores that was
    seen once, in a test of three steps. We could not repeat it, so these settings leave nothing
    that a device can wait for but the other devices: one program runs at a time, a device
    computes its products on its own thread, and XLA waits for 10 minutes.
    """
    flags = (
        f"--xla_force_host_platform_device_count={devices}",
        "--xla_cpu_multi_thread_eigen=false",
        "--xla_cpu_collective_call_terminate_timeout_seconds=600",
    )
    before = os.environ.get("XLA_FLAGS", "")
    return os.environ | {
        "JAX_PLATFORMS": "cpu",
        "JAX_CPU_ENABLE_ASYNC_DISPATCH": "0",
        "XLA_FLAGS": " ".join((before, *flags)),
    }


def with_eight_devices(*arguments):
    """What ``python ARGUMENTS`` prints last, read as JSON, when it has eight devices."""
    done = subprocess.run(
        [sys.executable, *arguments],
        cwd=ROOT,
        env=environment(8),
        capture_output=True,
        text=True,
        timeout=900,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return json.loads(done.stdout.splitlines()[-1])
