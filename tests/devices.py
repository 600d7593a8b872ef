"""Processes with several virtual CPU devices."""

import atexit
import contextlib
import functools
import io
import json
import os
import runpy
import subprocess
import sys
import traceback
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


@functools.cache
def eight_devices():
    """The process with eight devices that answers this one's questions; it starts JAX once."""
    process = subprocess.Popen(
        [sys.executable, "-m", "tests.devices"],
        cwd=ROOT,
        env=environment(8),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    atexit.register(process.wait)
    atexit.register(process.stdin.close)
    return process


def with_eight_devices(*arguments):
    """What ``python ARGUMENTS`` prints last, read as JSON, when it has eight devices.

    What the script changes in a module stays so for those after it.
    """
    process = eight_devices()
    print(json.dumps(arguments), file=process.stdin, flush=True)
    answer = json.loads(process.stdout.readline())
    assert "error" not in answer, answer["error"]
    return json.loads(answer["printed"].splitlines()[-1])


def answer(arguments):
    """Runs a script, or the code after ``-c``."""
    printed = io.StringIO()
    sys.argv = [*arguments[:1], *arguments[1 + (arguments[0] == "-c") :]]
    try:
        with contextlib.redirect_stdout(printed):
            if arguments[0] == "-c":
                exec(arguments[1], {"__name__": "__main__"})
            else:
                runpy.run_path(arguments[0], run_name="__main__")
    except Exception:
        return {"error": traceback.format_exc()[-3000:]}
    return {"printed": printed.getvalue()}


if __name__ == "__main__":
    for line in sys.stdin:
        print(json.dumps(answer(json.loads(line))), flush=True)
