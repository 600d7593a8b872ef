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
from collections.abc import Iterator, Sequence
from typing import Annotated, Any, Literal, NoReturn, get_args, get_origin, get_type_hints

from transformer_jax.config_types import Strings
from transformer_jax.errors import UserError
from transformer_jax.field_docs import field_docs
from transformer_jax.variants import ManyOf, OneOf, hint, mark_of, to_text


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
        for path, part in _parts(cls, prefix):
            group = self.add_argument_group(title or path.removesuffix("."))
            hints = get_type_hints(part, include_extras=True)
            for field in dataclasses.fields(part):
                kind = hints[field.name]
                if dataclasses.is_dataclass(kind) or only and field.name not in only:
                    continue
                flag, mark = path + field.name, mark_of(kind)
                notes = [field_docs(part).get(field.name, "")]
                if mark:
                    notes.append(f"kinds: {', '.join(mark.family)}")
                if not title:
                    notes.append(f"default: {_text(field.default, mark)}")
                group.add_argument(
                    f"--{flag}",
                    dest=flag,
                    default=argparse.SUPPRESS,
                    metavar=_metavar(kind),
                    help="; ".join(filter(None, notes)).replace("%", "%%"),
                )
                for variant in mark.family.values() if isinstance(mark, OneOf) else ():
                    self._options += tuple(
                        f"--{flag}.{o.name}" for o in dataclasses.fields(variant)
                    )

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


def _parts(cls: type, prefix: str) -> Iterator[tuple[str, type]]:
    """The class and those of its parts, each with the prefix of its keys."""
    yield prefix, cls
    for name, kind in get_type_hints(cls).items():
        if isinstance(kind, type) and dataclasses.is_dataclass(kind):
            yield from _parts(kind, f"{prefix}{name}.")


def _metavar(kind: Any) -> str:
    """What a value looks like: INT, FLOAT, true|false, a|b."""
    if kind == Strings:
        return "A,B"
    if mark := mark_of(kind):
        return "KIND,KIND" if isinstance(mark, ManyOf) else "KIND"
    if get_origin(kind) is Annotated:
        return _metavar(get_args(kind)[0])
    if get_origin(kind) is Literal:
        return "|".join(map(str, get_args(kind)))
    if type(None) in get_args(kind):
        return _metavar(next(each for each in get_args(kind) if each is not type(None))) + "|none"
    return {int: "INT", float: "FLOAT", bool: "true|false"}.get(kind, "TEXT")


def _text(value: Any, mark: OneOf | ManyOf | None) -> str:
    """A default as a flag spells it."""
    if isinstance(value, tuple):
        return ",".join(_text(each, mark) for each in value) or "none"
    if mark:
        return to_text(value, mark.family)
    return str(value).lower() if value is None or isinstance(value, bool) else str(value)
