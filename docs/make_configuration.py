"""Writes docs/configuration.md from the config dataclasses: `python docs/make_configuration.py`."""

import dataclasses
import inspect
import re
import textwrap
from pathlib import Path
from typing import Any, get_type_hints

from transformer_jax.config import Config

INTRODUCTION = """\
# Configuration

Written by `python docs/make_configuration.py`; change the dataclasses, not this page.

A recipe sets these keys in Python (see `configs/`), and the command line overrides any of them:
`--config.train.steps=3000`. Lists are written with commas: `--config.data.train_source=a.en,b.en`.
The run folder's `config.json` holds every value that a run used.
"""


def comments(cls: type) -> dict[str, str]:
    """Field name -> the `#:` comment on its line, as Markdown."""
    bases = [base for base in reversed(cls.__mro__) if dataclasses.is_dataclass(base)]
    sources = (textwrap.dedent(inspect.getsource(base)) for base in bases)
    lines = "\n".join(sources).splitlines()
    found = (re.match(r"    (\w+): .*?#: (.*)", line) for line in lines)
    return {match[1]: re.sub(r"([*<|])", r"\\\1", match[2]) for match in found if match}


def choices(hint: Any) -> str:
    """`a | b` for a Literal, else nothing."""
    values = getattr(hint, "__args__", ()) if "Literal" in str(hint) else ()
    return " \\| ".join(f"`{value}`" for value in values)


def shown(value: Any) -> str:
    """A default as it is written on the command line."""
    if isinstance(value, tuple):
        value = ",".join(value)
    if isinstance(value, bool):
        value = str(value).lower()
    return f"`{value}`" if value != "" else ""


def section(value: Any, prefix: str) -> list[str]:
    """Markdown for one config object, then for those inside it."""
    cls = type(value)
    children = {field.name: getattr(value, field.name) for field in dataclasses.fields(cls)}
    groups = {name: child for name, child in children.items() if dataclasses.is_dataclass(child)}
    values = {name: child for name, child in children.items() if name not in groups}
    # A class made of groups alone may come from make_dataclass and have no source.
    notes, hints = (comments(cls), get_type_hints(cls)) if values else ({}, {})
    rows = []
    for name, child in values.items():
        note = "; ".join(filter(None, (notes.get(name, ""), choices(hints[name]))))
        rows.append(f"| `{prefix}{name}` | {shown(child)} | {note} |")
    lines = []
    if rows:
        text = inspect.getdoc(cls) or ""
        lines = [f"## {prefix.rstrip('.')}", "", text.split("\n\nRaises:")[0], ""]
        lines += ["| key | default | |", "| --- | --- | --- |", *rows, ""]
    for name, child in groups.items():
        lines += section(child, f"{prefix}{name}.")
    return lines


def page() -> str:
    """The whole page."""
    return INTRODUCTION + "\n" + "\n".join(section(Config(), ""))


def main() -> None:
    """Writes the page."""
    Path(__file__).with_name("configuration.md").write_text(page(), encoding="utf-8")


if __name__ == "__main__":
    main()
