"""The JSON or YAML of a model folder, key by key, with refusals that name the key."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, TypeVar

import yaml

from transformer_jax.errors import UserError, as_user_error

T = TypeVar("T")

#: The default of a key that must be there.
REQUIRED: Any = object()


def read_json(path: Path, advice: str = "") -> dict[str, Any]:
    """The JSON object in a file.

    Raises:
        UserError: it is missing or not a JSON object.
    """
    invalid = as_user_error(f"{path}: not valid JSON", ValueError, RecursionError, then=advice)
    with invalid, as_user_error(f"{path}: cannot be read", OSError):
        values = json.loads(path.read_text(encoding="utf-8"))
    if not isinstance(values, dict):
        raise UserError(f"{path}: not a JSON object{advice}")
    return values


def parse_yaml(origin: str, text: bytes, *, all_is_text: bool = False) -> dict[str, Any]:
    """The mapping in a text of YAML; nothing in it is executed.

    Args:
        origin: where it came from, for messages.
        text: of YAML.
        all_is_text: values such as `on` and `1.50` stay text.

    Raises:
        UserError: it is not YAML, or not a mapping.
    """
    loader = "BaseLoader" if all_is_text else "SafeLoader"
    kinds = yaml.YAMLError, ValueError, RecursionError
    with as_user_error(f"{origin}: not valid YAML", *kinds):
        values = yaml.load(text, getattr(yaml, f"C{loader}", getattr(yaml, loader)))
    if not isinstance(values, dict):
        raise UserError(f"{origin}: not a mapping in YAML")
    return values


class Settings:
    """The values of one file.

    Args:
        origin: the file, for messages.
        values: its content.
    """

    def __init__(self, origin: str, values: Mapping[str, Any]) -> None:
        self.origin = origin
        self._values = values

    def get(self, key: str, kind: type[T], default: Any = REQUIRED) -> T:
        """The value of a key; a missing key, or null, has the default. `object` is any kind.

        Raises:
            UserError: it is missing and has no default, or is of another kind.
        """
        value = self._values.get(key)
        if value is None:
            if default is REQUIRED:
                raise UserError(f"{self.origin}: the key {key} is missing")
            return default
        if kind is float and type(value) is int:
            return kind(value)  # type: ignore[call-arg]
        if kind is not object and type(value) is not kind:
            raise UserError(f"{self.origin}: {key}={value!r} is not of type {kind.__name__}")
        return value

    def number(self, key: str, default: Any = REQUIRED) -> int:
        """A whole number above 0."""
        value = self.get(key, int, default)
        if value is not None and value <= 0:
            raise UserError(f"{self.origin}: {key}={value} must be above 0")
        return value

    def need(self, wanted: Mapping[str, Any]) -> None:
        """Refuses keys whose value, where it is given, is not the only one that can be used."""
        for key, only in wanted.items():
            value = self._values.get(key)
            if value not in (only, None):
                raise UserError(
                    f"{self.origin}: {key}={value!r} cannot be expressed; only {only!r}"
                )

    def choose(self, key: str, choices: Mapping[Any, T], default: Any = REQUIRED) -> T:
        """The choice that a key makes.

        Raises:
            UserError: another one.
        """
        value = self.get(key, type(next(iter(choices))), default)
        if value not in choices:
            listed = ", ".join(map(repr, choices))
            raise UserError(f"{self.origin}: {key}={value!r} cannot be expressed; only {listed}")
        return choices[value]
