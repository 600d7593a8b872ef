"""Recipes: Python files with a docstring and `config = Config(...)`.

A recipe may also define `by_pairs = ByPairs(...)`: settings that depend on the size of the text.
"""

import ast
import dataclasses
import re
import runpy
import sys
import traceback
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from itertools import compress
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from transformer_jax.errors import UserError, hint

if TYPE_CHECKING:
    from transformer_jax.config import Config

_PACKAGE = Path(__file__).parent
#: Where the recipes are: in the installed package, else beside it in a checkout.
_FOLDERS = (_PACKAGE / "configs", _PACKAGE.parent / "configs")


@dataclass(frozen=True)
class ByPairs:
    """Settings that depend on the number of training pairs: `by_pairs` of a recipe.

        by_pairs = tj.ByPairs(
            keys=("model.d_model", "model.dropout_rate"),
            below={20_000: (192, 0.3), 200_000: (256, 0.2)},
        )

    A text of 20,000 to 199,999 pairs has the values of the second row; one of 200,000 or more has
    those of the recipe's `config`. The first start of a run counts the pairs and keeps the values.

    Attributes:
        keys: what the rows hold, as dotted keys of the config.
        below: number of pairs -> the values of texts with fewer pairs, in ascending order.
        on_cpu: on a CPU, a text of more pairs than this has the values of this number.
    """

    keys: tuple[str, ...]
    below: Mapping[int, tuple[Any, ...]]
    on_cpu: int | None = None

    def __post_init__(self) -> None:
        if list(self.below) != sorted(self.below) or not self.below:
            raise UserError("by_pairs.below: give the rows in ascending order of their numbers")
        for number, row in self.below.items():
            if len(row) != len(self.keys):
                raise UserError(
                    f"by_pairs.below[{number}] has {len(row)} values for {len(self.keys)} keys"
                )

    def values(self, pairs: int, *, on_cpu: bool) -> dict[str, Any]:
        """The settings of a text, by key; empty where those of `config` apply.

        Args:
            pairs: how many it has; from the last number of `below` on, all are alike.
            on_cpu: whether it is trained on a CPU.
        """
        if on_cpu and self.on_cpu is not None:
            pairs = min(pairs, self.on_cpu)
        rows = (row for number, row in self.below.items() if pairs < number)
        return dict(zip(self.keys, next(rows, ()), strict=False))

    def without(self, given: Iterable[str]) -> "ByPairs":
        """The settings of the keys that are not given.

        A given key also removes its parts (`train.schedule`: its options) and the key that it is a
        part of, whose value would replace it.
        """
        dotted = [f"{key}." for key in given]
        kept = [
            not any(f"{key}.".startswith(one) or one.startswith(f"{key}.") for one in dotted)
            for key in self.keys
        ]
        rows = {number: tuple(compress(row, kept)) for number, row in self.below.items()}
        return ByPairs(tuple(compress(self.keys, kept)), rows, self.on_cpu)


class Recipe(NamedTuple):
    """What a recipe defines."""

    config: "Config"  #: not validated yet
    by_pairs: ByPairs | None


def recipe_files() -> dict[str, Path]:
    """The file of each recipe that comes with the package, by name."""
    folder = next(filter(Path.is_dir, _FOLDERS), _FOLDERS[0])
    return {path.stem: path for path in sorted(folder.glob("*.py"))}


def load_recipe(name: str | Path) -> "Config":
    """The `config` that a recipe defines, which is executed for it. It is not validated yet.

    What the recipe chooses by the number of training pairs (`by_pairs`) is not applied: the config
    is the one for the largest texts.

    Args:
        name: the name of a recipe that comes with the package, or a Python file.

    Raises:
        UserError: there is no such recipe, or it is wrong; the message names file and line.
    """
    return open_recipe(name).config


def open_recipe(name: str | Path) -> Recipe:
    """As `load_recipe`, with what depends on the size of the text."""
    from transformer_jax.config import Config, override

    file, known = Path(name), recipe_files()
    if not file.is_file() and str(name) in known:
        file = known[str(name)]
    if not file.is_file():
        raise UserError(
            f"{name}: no such file or recipe{hint(file.stem, known)}; the recipes are "
            f"{', '.join(known)}"
        )
    try:
        defined = runpy.run_path(str(file), run_name=f"recipe_{file.stem}")
    except Exception as error:  # a recipe is the user's code: name its line, not our stack
        raise UserError(f"{name}{_line_in(file, error)}: {_mistake(error)}") from error
    config, by_pairs = (defined.get(key) for key in ("config", "by_pairs"))
    if not isinstance(config, Config):
        raise UserError(f"{name}: the file must define `config = Config(...)`")
    if by_pairs is not None:
        if not isinstance(by_pairs, ByPairs):
            raise UserError(f"{name}: `by_pairs` must be `ByPairs(...)`")
        for row in by_pairs.below.values():
            values = dict(zip(by_pairs.keys, row, strict=True))
            override(config, values, prefix=f"{name}: by_pairs: ")
    return Recipe(config, by_pairs)


def describe(file: Path) -> dict[str, str]:
    """The docstring of a recipe: its first line as `Summary`, and `Command`, `Score` and so on.

    A docstring holds lines such as `Score:     97.1 BLEU`; indented lines continue one.
    """
    text = ast.get_docstring(ast.parse(file.read_text(encoding="utf-8"))) or ""
    entries = re.findall(r"^(\w+): +(.*(?:\n +.*)*)", text, re.MULTILINE)
    return {"Summary": text.partition("\n")[0]} | {
        key: " ".join(value.split()) for key, value in entries
    }


def _line_in(file: Path, error: Exception) -> str:
    """`:line` of the recipe that raised the error, or nothing."""
    if isinstance(error, SyntaxError) and error.filename == str(file):
        return f":{error.lineno}"
    frames = traceback.extract_tb(error.__traceback__)
    lines = [frame.lineno for frame in frames if frame.filename == str(file)]
    return f":{lines[-1]}" if lines else ""


def _mistake(error: Exception) -> str:
    """One line; for a key that a config class does not have, with the nearest that it has."""
    if isinstance(error, UserError):
        return str(error)
    text = str(error)
    match = re.search(r"(\w+)\.__init__\(\) got an unexpected keyword argument '(\w+)'", text)
    cls = getattr(sys.modules[__package__], match[1], None) if match else None
    if match and dataclasses.is_dataclass(cls):
        keys = [field.name for field in dataclasses.fields(cls)]
        return f"{match[1]} has no key {match[2]}{hint(match[2], keys)}; use {', '.join(keys)}"
    return " ".join(f"{type(error).__name__}: {text}".splitlines())
