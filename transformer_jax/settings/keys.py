"""The keys of a config class: a description of each.

A config is a tree of frozen dataclasses. A field is a part of the config, which is a dataclass
itself (`train`), or a key with a value (`train.steps`). The value may be a variant, whose options
are keys too (`train.schedule.warmup_steps`).

A comment `#: text` describes a field. It is on the field's line or on the lines below.
"""

import dataclasses
import functools
import inspect
import re
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple, TypeVar, get_args, get_type_hints

from pydantic import ConfigDict, TypeAdapter

from transformer_jax.settings.types import Mark

C = TypeVar("C")
F = TypeVar("F", bound=Callable[..., Any])


def _cached(function: F) -> F:
    """`functools.cache` of a function of a class, which mypy does not take for hashable."""
    return functools.cache(function)  # type: ignore[return-value]


class Key(NamedTuple):
    """A field of a config class, or an option of a variant."""

    owner: type  #: the class
    name: str  #: of the field
    annotation: Any
    default: Any  #: `dataclasses.MISSING`: the key must be given, or is a part

    @property
    def is_part(self) -> bool:
        """Whether it is a group of keys."""
        return isinstance(self.annotation, type) and dataclasses.is_dataclass(self.annotation)

    def has(self, mark: Mark) -> bool:
        """Whether the field, or what it is if it is not None, has a mark."""
        members = (self.annotation, *get_args(self.annotation))
        return any(mark in getattr(each, "__metadata__", ()) for each in members)

    @property
    def schema(self) -> dict[str, Any]:
        """Its JSON schema: type, range or choices, and description."""
        return _schemas(self.owner)[self.name]

    def parsed(self, value: Any) -> Any:
        """The value that a flag spells: `none` is None if the key may be None."""
        may_be_none = type(None) in get_args(self.annotation)
        return None if may_be_none and str(value).lower() == "none" else value


@_cached
def keys_of(cls: type) -> Mapping[str, Key]:
    """The keys of a config class or a variant's class, by name."""
    hints = get_type_hints(cls, include_extras=True)
    return {
        field.name: Key(cls, field.name, hints[field.name], field.default)
        for field in dataclasses.fields(cls)
        if field.init
    }


@_cached
def adapter(cls: type[C]) -> TypeAdapter[C]:
    """The validator of a config class; unknown keys are errors there and in its parts.

    It takes a millisecond to make, and a call of `decode` uses several.
    """
    if "__pydantic_config__" not in vars(cls):
        strict = ConfigDict(extra="forbid", revalidate_instances="always", allow_inf_nan=False)
        cls.__pydantic_config__ = strict  # type: ignore[attr-defined]
    return TypeAdapter(cls)


@_cached
def _schemas(cls: type) -> dict[str, dict[str, Any]]:
    docs = field_docs(cls)
    properties = adapter(cls).json_schema()["properties"]
    return {name: each | {"description": docs.get(name, "")} for name, each in properties.items()}


@_cached
def field_docs(cls: type) -> dict[str, str]:
    """Name of a dataclass field -> its comment, in which `None` is spelled as in a flag.

    Raises:
        ValueError: a comment stands above a field.
    """
    docs: dict[str, str] = {}
    fields = {field.name for field in dataclasses.fields(cls)}
    for base in reversed(cls.__mro__):
        if fields & inspect.get_annotations(base).keys():
            docs |= _comments(base)
    return docs


def _comments(cls: type) -> dict[str, str]:
    docs: dict[str, str] = {}
    name = ""  # of the field that a comment on this line describes
    for line in inspect.getsource(cls).splitlines():
        code, mark, comment = line.partition("#: ")
        if field := re.match(r"    (\w+): ", code):
            name = field[1]
        elif re.match(r" {0,4}[^\s)]", code) or not line.strip():
            name = ""  # not a default that goes over several lines
        if mark:
            if not name:
                above = f"put the comment below its field, or on its line: {comment}"
                raise ValueError(f"{cls.__name__}: {above}")
            docs[name] = f"{docs.get(name, '')} {comment}".replace("None = ", "none = ").strip()
            name = "" if code.strip() else name
    return docs
