"""Config objects that are chosen by name: a mixer, a norm, a decoding method, an optimizer.

A variant is a frozen dataclass, so the options of what is not chosen do not exist. It has
three spellings, which mean the same:

    Window(window=64)                         in Python
    window(window=64)                         in a flag; just `window` where no option is set
    {"kind": "window", "window": 64}          in JSON

A family is a dict from the name of each kind to its class. `OneOf` and `ManyOf` put a family
on a field; Pydantic then accepts the three spellings for that field and writes the third:

    norm: Annotated[Norm, OneOf(NORMS)] = LayerNorm()
    mixers: Annotated[tuple[Mixer, ...], ManyOf(MIXERS)] = (Full(),)
"""

import ast
import dataclasses
import difflib
import functools
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, TypeVar

from pydantic import TypeAdapter, ValidationError
from pydantic_core import CoreSchema, ErrorDetails, core_schema

C = TypeVar("C")


@dataclass(frozen=True, eq=False)
class OneOf:
    """Field annotation: one variant of a family."""

    family: Mapping[str, type]

    def __get_pydantic_core_schema__(self, *_: Any) -> CoreSchema:
        return _schema(
            lambda value: parse(value, self.family), lambda variant: to_dict(variant, self.family)
        )


@dataclass(frozen=True, eq=False)
class ManyOf:
    """Field annotation: a tuple of at least `least` variants of a family."""

    family: Mapping[str, type]
    least: int = 1

    def __get_pydantic_core_schema__(self, *_: Any) -> CoreSchema:
        return _schema(
            lambda value: _parse_many(value, self.family, self.least),
            lambda variants: [to_dict(variant, self.family) for variant in variants],
        )


def _schema(validate: Callable[[Any], Any], serialize: Callable[[Any], Any]) -> CoreSchema:
    return core_schema.no_info_plain_validator_function(
        validate, serialization=core_schema.plain_serializer_function_ser_schema(serialize)
    )


def mark_of(annotation: Any) -> OneOf | ManyOf | None:
    """The `OneOf` or `ManyOf` in `Annotated[..., OneOf(family)]`; None in other annotations."""
    marks = getattr(annotation, "__metadata__", ())
    return next((mark for mark in marks if isinstance(mark, OneOf | ManyOf)), None)


def kind_of(variant: Any, family: Mapping[str, type]) -> str:
    """The name under which the variant's class is registered.

    Raises:
        ValueError: the class is not in the family.
    """
    for name, cls in family.items():
        if type(variant) is cls:
            return name
    raise ValueError(f"{variant!r} is not one of {', '.join(family)}")


def parse(value: Any, family: Mapping[str, type]) -> Any:
    """The variant that `value` spells, with its options validated.

    Args:
        value: a variant, its text or its dict.
        family: the allowed kinds.

    Raises:
        ValueError: an unknown kind or option, or an option out of range; the message says
            what is allowed.
    """
    if isinstance(value, str):
        kind, options = split_text(value)
    elif isinstance(value, Mapping):
        options = dict(value)
        kind = options.pop("kind", None)
    else:
        kind = kind_of(value, family)
        options = {field.name: getattr(value, field.name) for field in dataclasses.fields(value)}
    if kind not in family:
        raise ValueError(f"{kind!r} is unknown{hint(kind, family)}; use {', '.join(family)}")
    return _validated(kind, family[kind], options)


def _parse_many(value: Any, family: Mapping[str, type], least: int) -> tuple[Any, ...]:
    """The variants of a list, or of a text in which commas separate them; `none` is no variant."""
    if isinstance(value, str):
        value = _split("" if value.strip().lower() == "none" else value)
    elif not isinstance(value, Iterable) or isinstance(value, Mapping):
        value = [value]
    variants = tuple(parse(one, family) for one in value)
    if len(variants) < least:
        raise ValueError(f"name at least one of {', '.join(family)}")
    return variants


def adapter(cls: type[C]) -> TypeAdapter[C]:
    """The validator of a class. It takes a millisecond to make, a call of `decode` uses several."""
    return _made(cls)  # type: ignore[arg-type]  # mypy takes no class for hashable


_made = functools.cache(TypeAdapter)


def to_dict(variant: Any, family: Mapping[str, type]) -> dict[str, Any]:
    """The JSON spelling: `kind` and every option."""
    options = adapter(type(variant)).dump_python(variant, mode="json", warnings=False)
    return {"kind": kind_of(variant, family)} | options


def to_text(variant: Any, family: Mapping[str, type]) -> str:
    """The flag spelling, with the options that differ from their defaults."""
    options = ", ".join(
        f"{field.name}={getattr(variant, field.name)!r}"
        for field in dataclasses.fields(variant)
        if getattr(variant, field.name) != field.default
    )
    name = kind_of(variant, family)
    return f"{name}({options})" if options else name


def _validated(kind: str, cls: type, options: dict[str, Any]) -> Any:
    known = [field.name for field in dataclasses.fields(cls)]
    for key in options:
        if key not in known:
            has = f"its options are {', '.join(known)}" if known else "it has no options"
            raise ValueError(f"{kind} has no option {key!r}{hint(key, known)}; {has}")
    try:
        return adapter(cls).validate_python(options)
    except ValidationError as error:
        first = error.errors()[0]
        option = ".".join(map(str, first["loc"]))
        if first["type"] == "missing":
            raise ValueError(f"{kind} needs {option}: {kind}({option}=...)") from error
        raise ValueError(f"{kind}({option}={first['input']}): {reason(first)}") from error


def reason(error: ErrorDetails) -> str:
    """What Pydantic says is wrong with a value: `must be greater than 0`."""
    message = error["msg"].removeprefix("Value error, ")
    return message.replace("Input should be", "must be", 1)


def hint(name: Any, known: Iterable[str], prefix: str = "") -> str:
    """` (did you mean another?)` where a known name is similar, else nothing."""
    nearest = difflib.get_close_matches(str(name), list(known), n=1)
    return f" (did you mean {prefix}{nearest[0]}?)" if nearest else ""


def _split(text: str) -> list[str]:
    """The text cut at the commas outside parentheses and quotes."""
    parts, depth, quote = [""], 0, ""
    for character in text:
        if quote:
            quote = "" if character == quote else quote
        elif character in "'\"":
            quote = character
        else:
            depth += (character in "([") - (character in ")]")
        if character == "," and depth == 0 and not quote:
            parts.append("")
        else:
            parts[-1] += character
    return [part for part in map(str.strip, parts) if part]


def split_text(text: str) -> tuple[str, dict[str, Any]]:
    """The kind and the options that a flag spells; neither is validated.

    The text is `name` or `name(option=value, ...)`, each value a Python literal, `none` or a
    plain word.
    """
    name, parenthesis, rest = text.strip().partition("(")
    if not parenthesis:
        return name.strip(), {}
    if not rest.endswith(")"):
        raise ValueError(f"{text!r} has no closing parenthesis")
    options: dict[str, Any] = {}
    for part in _split(rest[:-1]):
        key, equals, value = part.partition("=")
        if not equals:
            raise ValueError(f"{text!r}: write each option as name=value")
        options[key.strip()] = _literal(value.strip())
    return name.strip(), options


def _literal(text: str) -> Any:
    if text == "none":
        return None
    try:
        return ast.literal_eval(text)
    except (ValueError, SyntaxError):
        return text  # true, a word: Pydantic converts it to the option's type
