"""What a test may lack on a user's machine, and never in CI: another library, real text."""

import importlib
import os
from types import ModuleType

import pytest

IN_CI = os.environ.get("CI", "").lower() in ("1", "true")


def need(module: str) -> ModuleType:
    """The module. Where it is missing the test is skipped; in CI it fails."""
    if IN_CI:
        return importlib.import_module(module)
    return pytest.importorskip(module)


def missing(what: str) -> None:
    """Skips the test because of what this machine lacks; in CI it fails."""
    if IN_CI:
        pytest.fail(f"{what}: CI must have it (tests/oracles.py)")
    pytest.skip(what)
