"""Writes docs/configuration.md from the config dataclasses: `python docs/make_configuration.py`."""

import dataclasses
import inspect
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal, get_args, get_origin, get_type_hints

from annotated_types import Ge, Gt, Le, Lt, MultipleOf

from transformer_jax.config import Config
from transformer_jax.field_docs import field_docs
from transformer_jax.variants import ManyOf, OneOf, to_text

INTRODUCTION = """\
# Configuration

Written by `python docs/make_configuration.py`; change the dataclasses, not this page.

A recipe sets these keys in Python (see `configs/`), and the command line overrides any of them:
`--config.train.steps=3000`. Lists are written with commas:
`--config.data.source.train_source=a.en,b.en`.
The run folder's `config.json` holds every value that a run used.

Some keys choose one of several variants, each with options of its own. A variant has three
spellings: `Window(window=64)` in a recipe, `window(window=64)` in a flag, and
`{"kind": "window", "window": 64}` in `config.json`. The variants of each key are listed after the
keys.
"""

RANGES = {Ge: ("at least", "ge"), Gt: ("more than", "gt"), Le: ("at most", "le")}
RANGES |= {Lt: ("less than", "lt"), MultipleOf: ("a multiple of", "multiple_of")}

#: The families of variants, each with the keys that choose from it.
Families = list[tuple[Mapping[str, type], list[str]]]


def comments(cls: type) -> dict[str, str]:
    """Field name -> its comment, as Markdown."""
    return {name: re.sub(r"([*<|])", r"\\\1", text) for name, text in field_docs(cls).items()}


def metadata(hint: Any) -> list[Any]:
    """What is annotated on a field's type, and on the members of a union."""
    inside = [one for member in get_args(hint) for one in metadata(member)]
    return [*getattr(hint, "__metadata__", ()), *inside]


def allowed(hint: Any) -> str:
    """The choices of a Literal, or the declared range."""
    for member in (hint, *get_args(hint)):
        if get_origin(member) is Literal:
            return " \\| ".join(f"`{value}`" for value in get_args(member))
    notes = []
    for one in metadata(hint):
        if type(one) in RANGES:
            words, field = RANGES[type(one)]
            bound = getattr(one, field)
            # typing takes Annotated[float, Ge(0)] and Annotated[float, Ge(0.0)] for the same and
            # keeps the one that was imported first.
            notes.append(f"{words} {int(bound) if bound == int(bound) else bound}")
    return ", ".join(notes)


def family_of(hint: Any) -> Mapping[str, type] | None:
    """The variants that a field chooses from."""
    marks = [one for one in metadata(hint) if isinstance(one, OneOf | ManyOf)]
    return marks[0].family if marks else None


def shown(value: Any, family: Mapping[str, type] | None) -> str:
    """A default as it is written on the command line."""
    if value is dataclasses.MISSING:
        return "(required)"
    if family is not None:
        variants = value if isinstance(value, tuple) else (value,)
        value = ",".join(to_text(variant, family) for variant in variants)
    elif isinstance(value, tuple):
        value = ",".join(value)
    if isinstance(value, bool):
        value = str(value).lower()
    if value is None:
        value = "none"
    return f"`{value}`" if value != "" else ""


def table(cls: type, prefix: str, families: Families) -> list[str]:
    """Markdown for the fields of a class that are no groups of keys."""
    notes, hints = comments(cls), get_type_hints(cls, include_extras=True)
    rows = []
    for field in dataclasses.fields(cls):
        hint = hints[field.name]
        if dataclasses.is_dataclass(hint):
            continue
        family = family_of(hint)
        note = [notes.get(field.name, ""), allowed(hint)]
        if family is not None:
            note.append("a variant, see below")
            register(families, family, f"{prefix}{field.name}")
        text = "; ".join(filter(None, note))
        rows.append(f"| `{prefix}{field.name}` | {shown(field.default, family)} | {text} |")
    if not rows:
        return []
    return ["| key | default | |", "| --- | --- | --- |", *rows, ""]


def register(families: Families, family: Mapping[str, type], key: str) -> None:
    """Notes that `key` chooses from `family`."""
    for known, keys in families:
        if known is family:
            keys.append(key)
            return
    families.append((family, [key]))


def summary(cls: type) -> list[str]:
    """The class docstring."""
    return [(inspect.getdoc(cls) or "").split("\n\nRaises:")[0], ""]


def section(cls: type, prefix: str, families: Families) -> list[str]:
    """Markdown for one config class, then for the groups inside it."""
    lines = table(cls, prefix, families)
    if lines:
        lines = [f"## {prefix.rstrip('.')}", "", *summary(cls), *lines]
    for name, hint in get_type_hints(cls, include_extras=True).items():
        if dataclasses.is_dataclass(hint) and name in cls.__dataclass_fields__:
            lines += section(hint, f"{prefix}{name}.", families)
    return lines


def variants(families: Families) -> list[str]:
    """Markdown for every variant of every family."""
    lines = []
    for family, keys in families:
        lines += [f"## Variants of {' and '.join(f'`{key}`' for key in keys)}", ""]
        for name, cls in family.items():
            lines += [f"### {name}", "", *summary(cls), *table(cls, "", [])]
    return lines


def page() -> str:
    """The whole page."""
    families: Families = []
    lines = section(Config, "", families)
    return INTRODUCTION + "\n" + "\n".join([*lines, *variants(families)])


def main() -> None:
    """Writes the page."""
    Path(__file__).with_name("configuration.md").write_text(page(), encoding="utf-8")


if __name__ == "__main__":
    main()
