"""Settings that depend on the target platform, which is unknown at trace time.

`jax.default_backend()` is the platform of the process that traces. The target differs from it
when a program is compiled for devices that are only described (`train.py --plan_topology`). So JAX
traces the variant of every platform, and the compiled program has that of its own.
"""

import contextlib
import functools
from collections.abc import Callable, Iterator
from contextvars import ContextVar
from pathlib import Path
from typing import Any, TypeVar

import jax

T = TypeVar("T")


@functools.cache
def has_amx() -> bool:
    """Whether this machine's CPU multiplies tiles of int8, as Linux says."""
    about = Path("/proc/cpuinfo")
    return about.exists() and " amx_int8" in about.read_text()


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
