"""Flags for the keys of a config: `--config.train.steps=7`, `--batch_size=16`.

argparse parses and lists the flags; `transformer_jax.config.override` applies and checks them.
A flag may also go into a variant, as in `--config.train.schedule.warmup_steps=10`. Its options
depend on its kind, so these flags are not listed, and `override` refuses those of another kind.
(tyro lists flags as well as this does, but has no flags into a variant that is also a value, and
prints an error as a box of many lines.)
"""

import argparse
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any, NoReturn

from transformer_jax.config import walk
from transformer_jax.config_keys import keys_of
from transformer_jax.errors import UserError, hint
from transformer_jax.variants import ManyOf, OneOf, flag_text, mark_of

#: JSON's name of a type -> what a value looks like.
_METAVARS = {"integer": "INT", "number": "FLOAT", "boolean": "true|false", "string": "TEXT"}
_METAVARS |= {"array": "A,B", "null": "none"}

_KINDS: dict[type, str] = {OneOf: "KIND", ManyOf: "KIND,KIND"}


class _Key(argparse.Action):
    """Collects the text of a key's value."""

    def __call__(self, parser: Any, args: argparse.Namespace, value: Any, flag: Any = None) -> None:
        args.flags = {**args.flags, self.dest: value}


class Parser(argparse.ArgumentParser):
    """An argument parser with flags for a config, whose errors are one line."""

    def error(self, message: str) -> NoReturn:
        """Raises what `main` prints."""
        raise UserError(f"{message}; see {self.prog} --help")

    def add_config(
        self, cls: type, prefix: str = "", *, title: str | None = None, only: Sequence[str] = ()
    ) -> None:
        """Adds a flag for each key of a config class and of its parts.

        Args:
            cls: the config class.
            prefix: put before each key: `config.` for `--config.train.steps`.
            title: of the flags in the help, which then shows no defaults; without a title
                they are grouped by part.
            only: the keys to add; all where it is empty.
        """
        self.set_defaults(flags={})
        groups: dict[str, Any] = {}
        for path, key, (default,) in walk(cls(), variants=False):
            if only and key.name not in only:
                continue
            name = title or f"{prefix}{path}".rpartition(".")[0]
            if name not in groups:
                groups[name] = self.add_argument_group(name)
            mark, notes = mark_of(key.annotation), [key.schema["description"]]
            if mark:
                notes.append(f"kinds: {', '.join(mark.family)}")
            if not title:
                notes.append(f"default: {flag_text(default, key) if default != () else 'none'}")
            add = partial(groups[name].add_argument, action=_Key, default=argparse.SUPPRESS)
            shown = "; ".join(filter(None, notes)).replace("%", "%%")
            metavar = _KINDS.get(type(mark)) or _metavar(key.schema)
            add(f"--{prefix}{path}", dest=path, metavar=metavar, help=shown)
            variants = mark.family.values() if type(mark) is OneOf else ()
            for option in dict.fromkeys(option for each in variants for option in keys_of(each)):
                inside = f"{path}.{option}"
                add(f"--{prefix}{inside}", dest=inside, help=argparse.SUPPRESS)

    def parse(self, words: Sequence[str]) -> argparse.Namespace:
        """The parsed words; `flags` holds the keys of the config and the text of their values.

        Raises:
            UserError: an argument is unknown, missing, or has no value.
        """
        args, rest = self.parse_known_args(words)
        if rest:
            flag, known = rest[0].partition("=")[0], list(self._option_string_actions)
            inside = [option for option in known if option.endswith(f".{flag[2:]}")]
            meant = hint(inside[0], inside) if inside else hint(flag, known)
            self.error(f"unknown argument {rest[0]}{meant}")
        return args


def _metavar(schema: Mapping[str, Any]) -> str:
    """What a value looks like: INT, FLOAT, true|false, a|b."""
    if "anyOf" in schema:
        return "|".join(map(_metavar, schema["anyOf"]))
    if "enum" in schema or "const" in schema:
        return "|".join(schema.get("enum", [schema.get("const")]))
    return _METAVARS[schema["type"]]
