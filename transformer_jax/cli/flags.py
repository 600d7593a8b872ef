"""Flags for the keys of a config: `--config.train.steps=7`, `--batch_size=16`.

argparse parses and lists the flags; `transformer_jax.config.override` applies and checks them.
A flag may also go into a variant, as in `--config.train.schedule.warmup_steps=10`. Its options
depend on its kind, so these flags are not declared: the parser passes on what it does not know,
and `override` refuses what is wrong. (tyro lists flags as well as this does, but has no flags
into a variant that is also a value, and prints an error as a box of many lines.)
"""

import argparse
import dataclasses
import re
from collections.abc import Mapping, Sequence
from typing import Any, NoReturn

from transformer_jax.config_keys import keys_of, walk
from transformer_jax.errors import UserError, hint
from transformer_jax.variants import ManyOf, OneOf, flag_text, mark_of

#: JSON's name of a type -> what a value looks like.
_METAVARS = {"integer": "INT", "number": "FLOAT", "boolean": "true|false", "string": "TEXT"}
_METAVARS |= {"array": "A,B", "null": "none"}

_KINDS: dict[type, str] = {OneOf: "KIND", ManyOf: "KIND,KIND"}


class Parser(argparse.ArgumentParser):
    """An argument parser with flags for a config, whose errors are one line."""

    #: Put before each key in a flag; and the first parts of the keys.
    _prefix: str = ""
    _keys: frozenset[str] = frozenset()
    #: Flags into variants, such as `--method.beam_size`; only for hints.
    _options: tuple[str, ...] = ()

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
        self._prefix = prefix
        self._keys = frozenset(only or (field.name for field in dataclasses.fields(cls)))
        groups: dict[str, Any] = {}
        for path, key, (default,) in walk(cls(), prefix=prefix, variants=False):
            if only and key.name not in only:
                continue
            name = title or path.rpartition(".")[0]
            if name not in groups:
                groups[name] = self.add_argument_group(name)
            mark, notes = mark_of(key.annotation), [key.schema["description"]]
            if mark:
                notes.append(f"kinds: {', '.join(mark.family)}")
            if not title:
                notes.append(f"default: {flag_text(default, key) if default != () else 'none'}")
            groups[name].add_argument(
                f"--{path}",
                dest=path,
                default=argparse.SUPPRESS,
                metavar=_KINDS.get(type(mark)) or _metavar(key.schema),
                help="; ".join(filter(None, notes)).replace("%", "%%"),
            )
            for variant in mark.family.values() if type(mark) is OneOf else ():
                self._options += tuple(f"--{path}.{option}" for option in keys_of(variant))

    def parse(self, words: Sequence[str]) -> argparse.Namespace:
        """The parsed words; `flags` holds the keys of the config and the text of their values.

        Raises:
            UserError: an argument is unknown, missing, or has no value.
        """
        args, rest = self.parse_known_args(words)
        flags = {name: value for name, value in vars(args).items() if self._key(name)}
        for word in rest:
            flag, equals, value = word.partition("=")
            if not (equals and flag.startswith("--") and self._key(flag[2:])):
                inside = [option for option in self._options if option.endswith(f".{flag[2:]}")]
                known = inside[:1] or re.findall(r"--[\w.]+", self.format_help())
                self.error(f"unknown argument {word}{hint(inside[0] if inside else flag, known)}")
            flags[flag[2:]] = value
        args.flags = {self._key(name): value for name, value in flags.items()}
        return args

    def _key(self, name: str) -> str:
        """The key of a flag without its dashes; "" for a flag of another kind."""
        key = name.removeprefix(self._prefix)
        is_key = name.startswith(self._prefix) and key.partition(".")[0] in self._keys
        return key if is_key else ""


def _metavar(schema: Mapping[str, Any]) -> str:
    """What a value looks like: INT, FLOAT, true|false, a|b."""
    if "anyOf" in schema:
        return "|".join(map(_metavar, schema["anyOf"]))
    if "enum" in schema or "const" in schema:
        return "|".join(schema.get("enum", [schema.get("const")]))
    return _METAVARS[schema["type"]]
