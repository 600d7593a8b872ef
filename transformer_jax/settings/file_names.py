"""Absolute names of the files that a config names."""

import dataclasses
import os
from typing import Any, TypeVar

from transformer_jax.settings.keys import keys_of
from transformer_jax.settings.types import FILES

C = TypeVar("C")


def absolute_name(path: str) -> str:
    """The absolute name of a file or folder; a URL stays as it is."""
    return path if "://" in path else os.path.abspath(os.path.expanduser(path))


def absolute_names(value: C) -> C:
    """A config, a part of one or variants, with absolute names in all fields that name files."""
    if isinstance(value, tuple):
        return tuple(map(absolute_names, value))  # type: ignore[return-value]
    if not dataclasses.is_dataclass(value):
        return value
    own = getattr(value, "absolute", None)
    return own() if own else absolute_fields(value)


def absolute_fields(config: C) -> C:
    """As `absolute_names`, but for what the config itself says about it by `absolute`."""
    changes: dict[str, Any] = {}
    for name, key in keys_of(type(config)).items():
        value = getattr(config, name)
        if not key.has(FILES):
            changes[name] = absolute_names(value)
        elif value:
            is_one = isinstance(value, str)
            changes[name] = absolute_name(value) if is_one else tuple(map(absolute_name, value))
    return dataclasses.replace(config, **changes)  # type: ignore[type-var]
