"""Settings that depend on the target platform, which is unknown at trace time.

`jax.default_backend()` is the platform of the process that traces. The target differs from it
when a program is compiled for devices that are only described (`train.py --plan_topology`). So JAX
traces the variant of every platform, and the compiled program has that of its own.
"""

import contextlib
import functools
import re
from collections.abc import Callable, Iterator
from contextvars import ContextVar
from pathlib import Path
from typing import Any, TypeVar

import jax

T = TypeVar("T")


@functools.cache
def cpu_flags(path: Path = Path("/proc/cpuinfo")) -> frozenset[str]:
    """The features that Linux lists for the first processor; empty elsewhere."""
    text = path.read_text(encoding="utf-8", errors="replace") if path.exists() else ""
    flags = re.search(r"^flags\s*:(.*)$", text, re.MULTILINE)
    return frozenset(flags[1].split() if flags else ())


def by_platform(function: Callable[..., Any], *arrays: Any, other: T, **settings: T) -> Any:
    """`function(*arrays, setting)` with the setting of the target platform.

    Args:
        function: must return arrays of the same shapes and dtypes with either setting.
        arrays: its first arguments, arrays or trees of arrays.
        other: the setting where `settings` names no other.
        settings: by platform: `cpu`, `cuda`, `tpu`.
    """

    def with_setting(setting: T) -> Callable[..., Any]:
        return lambda *arrays: function(*arrays, setting)

    forms = {platform: with_setting(setting) for platform, setting in settings.items()}
    return jax.lax.platform_dependent(*arrays, default=with_setting(other), **forms)


@contextlib.contextmanager
def tracing_with(variable: ContextVar[T], value: T) -> Iterator[None]:
    """What is traced inside finds this value in the variable."""
    token = variable.set(value)
    try:
        yield
    finally:
        variable.reset(token)
