"""Settings that hang on the platform a program is compiled for, which tracing does not know.

`jax.default_backend()` names the platform of the process that traces. That is another one
where a program is compiled for devices that are only described (`train.py --plan_topology`)
or exported. So whatever differs by platform is traced for each, and lowering picks one.
"""

from collections.abc import Callable
from typing import Any, TypeVar

import jax

T = TypeVar("T")


def by_platform(function: Callable[..., Any], *arrays: jax.Array, cpu: T, other: T) -> Any:
    """`function(*arrays, setting)` with the setting of the platform that is compiled for.

    Args:
        function: must return arrays of the same shapes and dtypes with either setting.
        arrays: its first arguments.
        cpu: the setting on CPUs.
        other: the setting everywhere else.
    """
    return jax.lax.platform_dependent(
        *arrays,
        cpu=lambda *arrays: function(*arrays, cpu),
        default=lambda *arrays: function(*arrays, other),
    )
