"""Processes with several virtual CPU devices."""

import json
import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[1]


def environment(devices):
    """The environment of a process whose CPU counts as this many devices.

    XLA starts a program on each device from one pool of threads, and a device that waits for the
    others, in a sum over devices, keeps its thread. With as few threads as devices, XLA's default,
    half of them can wait in one program while the others wait to start the next one: forever. With
    one program at a time on each device (no asynchronous dispatch), two threads for each device
    are enough. NPROC is how XLA is told the number of threads. A device computes its products on
    its own thread, so that they need no other.
    """
    flags = (
        f"--xla_force_host_platform_device_count={devices}",
        "--xla_cpu_multi_thread_eigen=false",
    )
    before = os.environ.get("XLA_FLAGS", "")
    return os.environ | {
        "JAX_PLATFORMS": "cpu",
        "JAX_CPU_ENABLE_ASYNC_DISPATCH": "0",
        "NPROC": str(4 * devices),
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
