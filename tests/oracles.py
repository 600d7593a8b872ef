"""What a test compares with, and a machine may lack: another library, real text.

Such a test is skipped where it is missing. `.ci/run` then runs all skipped tests in an environment
that has everything, and fails if one is skipped there too.
"""

import os
from types import ModuleType

import pytest


def need(module: str) -> ModuleType:
    """The module. Where it is missing the test is skipped."""
    # The skip is then the caller's. pytest-xdist reports only one of those from the same line.
    __tracebackhide__ = True
    return pytest.importorskip(module)


def missing(what: str) -> None:
    """Skips the test because of what this machine lacks."""
    __tracebackhide__ = True
    pytest.skip(what)


def apart(why: str) -> None:
    """Leaves a test that repeats a whole example, for minutes, to `./run oracles`."""
    __tracebackhide__ = True
    if "RUN_ORACLES" not in os.environ:
        pytest.skip(f"./run oracles runs it: {why}")
