"""Flags for the keys of a config: `--config.train.steps=7`, `--batch_size=16`.

argparse parses and lists the flags; `transformer_jax.config.override` applies and checks them.
A flag may also go into a variant, as in `--config.train.schedule.warmup_steps=10`. Its options
depend on its kind, so these flags are not listed, and `override` refuses those of another kind.
(tyro lists flags as well as this does, but has no flags into a variant that is also a value, and
prints an error as a box of many lines.)
"""

import argparse
import re
from collections.abc import Collection, Mapping, Sequence
from functools import partial
from typing import Any, NoReturn

from transformer_jax.config import walk
from transformer_jax.errors import UserError, hint
from transformer_jax.recipes import open_recipe
from transformer_jax.settings.keys import keys_of
from transformer_jax.settings.types import USUAL
from transformer_jax.settings.variants import ManyOf, OneOf, flag_text, mark_of

#: JSON's name of a type -> what a value looks like.
_METAVARS = {"integer": "INT", "number": "FLOAT", "boolean": "true|false", "string": "TEXT"}
_METAVARS |= {"array": "A,B", "null": "none"}

_KINDS: dict[type, str] = {OneOf: "KIND", ManyOf: "KIND,KIND"}


def part_of(flag: str, text: str, *, first: int) -> tuple[int, int]:
    """The number of a part, from 0, and how many there are, of a flag's value I/N.

    Args:
        flag: its name.
        text: its value.
        first: what I is of the first part.

    Raises:
        UserError: it is of another form, or there is no such part.
    """
    match = re.fullmatch(r"(\d+)/(\d+)", text)
    if not match or not first <= int(match[1]) < first + int(match[2]):
        raise UserError(
            f"--{flag}={text}: give I/N with I from {first} to {'N - 1' if first == 0 else 'N'}"
        )
    return int(match[1]) - first, int(match[2])


class _Key(argparse.Action):
    """Collects the text of a key's value."""

    def __call__(self, parser: Any, args: argparse.Namespace, value: Any, flag: Any = None) -> None:
        args.flags = {**args.flags, self.dest: value}


def _int(text: str) -> int:
    """The whole number of a flag; none needs more than what an array of int32 holds."""
    value = int(text)
    if abs(value) >= 1 << 31:
        raise argparse.ArgumentTypeError(f"{text} is too large")
    return value


def _count(text: str) -> int:
    """The number of things of a flag, `type="count"`."""
    if (value := _int(text)) < 1:
        raise argparse.ArgumentTypeError(f"{text}: must be at least 1")
    return value


class _Help(argparse.Action):
    """`--help` shows the usual flags of a config, `--help=all` all of them."""

    def __call__(self, parser: Any, args: argparse.Namespace, value: Any, flag: Any = None) -> None:
        parser.describe_keys(everything=value == "all")
        parser.print_help()
        parser.exit()


class Parser(argparse.ArgumentParser):
    """An argument parser with flags for a config, whose errors are one line."""

    def __init__(self, **options: Any) -> None:
        raw = argparse.RawDescriptionHelpFormatter
        super().__init__(**options, add_help=False, formatter_class=raw)
        self.register("type", int, _int)
        self.register("type", "count", _count)
        self._words: Sequence[str] = ()
        self._configs: list[tuple[type, str, str | None, Collection[str]]] = []
        text = "show this; all: with every setting of the recipe"
        self.add_argument("-h", "--help", action=_Help, nargs="?", metavar="all", help=text)

    def error(self, message: str) -> NoReturn:
        """Raises what `main` prints."""
        raise UserError(f"{message}; see {self.prog} --help")

    def add_config(
        self,
        cls: type,
        prefix: str = "",
        *,
        title: str | None = None,
        only: Sequence[str] = (),
        usual: Collection[str] = (),
    ) -> None:
        """Adds a flag for each key of a config class and of its parts.

        Args:
            cls: the config class.
            prefix: put before each key: `config.` for `--config.train.steps`.
            title: of the flags in the help, which then shows no defaults; without a title
                they are grouped by part.
            only: the keys to add; all where it is empty.
            usual: the parts of which the short help shows what is `USUAL`; it shows all keys where
                this is empty.
        """
        self.set_defaults(flags={})
        self._configs.append((cls, prefix, title, usual))
        groups: dict[str, Any] = {}
        for path, key, _ in walk(cls(), variants=False):
            if only and key.name not in only:
                continue
            name = title or f"{prefix}{path}".rpartition(".")[0]
            if name not in groups:
                groups[name] = self.add_argument_group(name)
            mark = mark_of(key.annotation)
            add = partial(groups[name].add_argument, action=_Key, default=argparse.SUPPRESS)
            add(f"--{prefix}{path}", dest=path, help=argparse.SUPPRESS)
            variants = mark.family.values() if type(mark) is OneOf else ()
            for option in dict.fromkeys(option for each in variants for option in keys_of(each)):
                inside = f"{path}.{option}"
                add(f"--{prefix}{inside}", dest=inside, help=argparse.SUPPRESS)

    def describe_keys(self, *, everything: bool) -> None:
        """Fills in the help of the flags that keys have, and the options of their variants.

        Defaults are those of the recipe that `--config` names. What is not usual stays hidden.
        """
        names = [word.partition("=")[2] for word in self._words if word.startswith("--config=")]
        for cls, prefix, title, usual in self._configs:
            config = open_recipe(names[-1]).config if usual and names else cls()
            for path, key, (value,) in walk(config):
                action = self._option_string_actions.get(f"--{prefix}{path}")
                is_usual = key.has(USUAL) and path.partition(".")[0] in usual
                if action is None or not (is_usual or everything or not usual):
                    continue
                mark, notes = mark_of(key.annotation), [key.schema["description"]]
                if mark:
                    notes.append(f"kinds: {', '.join(mark.family)}")
                if not title:
                    notes.append(f"default: {flag_text(value, key) if value != () else 'none'}")
                action.help = "; ".join(filter(None, notes)).replace("%", "%%")
                action.metavar = _KINDS.get(type(mark)) or _metavar(key.schema)
            if usual and not everything:
                recipe = "--config=RECIPE --help=all" if not names else "--help=all"
                self.epilog = f"{recipe} lists every setting of the recipe and its default."

    def parse(self, words: Sequence[str]) -> argparse.Namespace:
        """The parsed words; `flags` holds the keys of the config and the text of their values.

        Raises:
            UserError: an argument is unknown, missing, or has no value.
        """
        self._words = words
        args, rest = self.parse_known_args(words)
        if rest:
            flag, known = rest[0].partition("=")[0], list(self._option_string_actions)
            # Parts of the key may be missing: before it, or before its last word.
            place, _, name = (re.escape(part) for part in flag.removeprefix("--").rpartition("."))
            inside = [each for each in known if re.fullmatch(rf"--.*\b{place}\b.*\.{name}", each)]
            meant = f" (did you mean {' or '.join(inside[:2])}?)" if inside else hint(flag, known)
            self.error(f"unknown argument {rest[0]}{meant}")
        return args


def _metavar(schema: Mapping[str, Any]) -> str:
    """What a value looks like: INT, FLOAT, true|false, a|b."""
    if "anyOf" in schema:
        return "|".join(map(_metavar, schema["anyOf"]))
    if "enum" in schema or "const" in schema:
        return "|".join(schema.get("enum", [schema.get("const")]))
    return _METAVARS[schema["type"]]
