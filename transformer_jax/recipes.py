"""Recipes: Python files with a docstring and `config = Config(...)`."""

import ast
import dataclasses
import importlib.util
import re
import sys
import traceback
from pathlib import Path
from typing import TYPE_CHECKING

from transformer_jax.errors import UserError
from transformer_jax.variants import hint

if TYPE_CHECKING:
    from transformer_jax.config import Config

_PACKAGE = Path(__file__).parent
#: Where the recipes are: in the installed package, else beside it in a checkout.
_FOLDERS = (_PACKAGE / "configs", _PACKAGE.parent / "configs")


def recipe_files() -> dict[str, Path]:
    """The file of each recipe that comes with the package, by name."""
    folder = next(filter(Path.is_dir, _FOLDERS), _FOLDERS[0])
    return {path.stem: path for path in sorted(folder.glob("*.py"))}


def load_recipe(name: str | Path) -> "Config":
    """The `config` that a recipe defines, which is executed for it. It is not validated yet.

    Args:
        name: the name of a recipe that comes with the package, or a Python file.

    Raises:
        UserError: there is no such recipe, or it is wrong; the message names file and line.
    """
    from transformer_jax.config import Config

    file, known = Path(name), recipe_files()
    if not file.is_file() and str(name) in known:
        file = known[str(name)]
    if not file.is_file():
        raise UserError(
            f"{name}: no such file or recipe{hint(file.stem, known)}; the recipes are "
            f"{', '.join(known)}"
        )
    spec = importlib.util.spec_from_file_location(f"recipe_{file.stem}", file)
    if spec is None or spec.loader is None:
        raise UserError(f"{name}: not a Python file")
    module = importlib.util.module_from_spec(spec)
    try:
        spec.loader.exec_module(module)
    except Exception as error:  # a recipe is the user's code: name its line, not our stack
        raise UserError(f"{name}{_line_in(file, error)}: {_mistake(error)}") from error
    config = getattr(module, "config", None)
    if not isinstance(config, Config):
        raise UserError(f"{name}: the file must define `config = Config(...)`")
    return config


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
