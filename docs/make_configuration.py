"""Writes docs/configuration.md from the config dataclasses: `python docs/make_configuration.py`."""

import inspect
import re
from collections.abc import Mapping
from dataclasses import MISSING
from pathlib import Path
from typing import Any

from transformer_jax.config import Config, walk
from transformer_jax.settings.keys import Key, keys_of
from transformer_jax.settings.variants import flag_text, mark_of

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

#: JSON schema's name of a limit -> its words, in the order in which they are shown.
LIMITS = {"minimum": "at least", "exclusiveMinimum": "more than", "maximum": "at most"}
LIMITS |= {"exclusiveMaximum": "less than", "multipleOf": "a multiple of"}


def allowed(schema: Mapping[str, Any]) -> str:
    """The choices or the range of a value, from its JSON schema."""
    if "anyOf" in schema:
        return ", ".join(filter(None, map(allowed, schema["anyOf"])))
    if "items" in schema:
        return allowed(schema["items"])
    if "const" in schema or "enum" in schema:
        return " \\| ".join(f"`{value}`" for value in schema.get("enum", [schema.get("const")]))
    return ", ".join(
        f"{words} {schema[name]:.12g}" for name, words in LIMITS.items() if name in schema
    )


def row(key: Key, path: str) -> str:
    """One key in a table."""
    default = "(required)"
    if key.default is not MISSING:
        text = flag_text(key.default, key)
        default = f"`{text}`" if text else ""
    doc = re.sub(r"([*<|])", r"\\\1", key.schema["description"])
    values = "a variant, see below" if mark_of(key.annotation) else allowed(key.schema)
    return f"| `{path}` | {default} | {'; '.join(filter(None, [doc, values]))} |"


def section(title: str, cls: type, rows: list[str]) -> list[str]:
    """A heading, what the class says of itself, and the table of its keys."""
    summary = (inspect.getdoc(cls) or "").split("\n\nRaises:")[0]
    table = ["| key | default | |", "| --- | --- | --- |", *rows, ""]
    return [title, "", summary, "", *(table if rows else [])]


def page() -> str:
    """The whole page."""
    rows: dict[tuple[str, type], list[str]] = {}
    families: dict[int, tuple[Mapping[str, type], list[str]]] = {}
    for path, key, _ in walk(Config(), variants=False):
        rows.setdefault((path.rpartition(".")[0], key.owner), []).append(row(key, path))
        if mark := mark_of(key.annotation):
            families.setdefault(id(mark.family), (mark.family, []))[1].append(path)
    lines = [INTRODUCTION]
    for (part, cls), table in rows.items():
        lines += section(f"## {part}", cls, table)
    for family, keys in families.values():
        lines += [f"## Variants of {' and '.join(f'`{key}`' for key in keys)}", ""]
        for kind, cls in family.items():
            table = [row(key, name) for name, key in keys_of(cls).items()]
            lines += section(f"### {kind}", cls, table)
    return "\n".join(lines)


def main() -> None:
    """Writes the page."""
    Path(__file__).with_name("configuration.md").write_text(page(), encoding="utf-8")


if __name__ == "__main__":
    main()
