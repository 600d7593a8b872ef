"""Follows docs/adding_*.md as a stranger would: in a copy of the repository, block by block.

A page shows each file that it adds (```python title=PATH), each change of a file (```diff
title=PATH, with the lines above for context) and the commands that it asks for (```sh). The
copy is imported in place of this repository, so every file of the page must import what it
uses, and its lines in other files must be enough.
"""

import contextlib
import importlib
import inspect
import re
import runpy
import shutil
import sys
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple

import pytest

ROOT = Path(__file__).parents[1]
PAGES = sorted(path.name for path in (ROOT / "docs").glob("adding_*.md"))
#: The packages that are imported from the copy.
PACKAGES = ("transformer_jax", "tests")


class Block(NamedTuple):
    """A fenced block: its language, the file that it is about, if any, and its text."""

    kind: str
    title: str
    text: str


def blocks(page: str) -> list[Block]:
    """The fenced blocks of docs/`page`."""
    text = (ROOT / "docs" / page).read_text(encoding="utf-8")
    fences = re.findall(r"^```(\w+)(?: title=(\S+))?\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)
    return [Block(*fence) for fence in fences]


@contextlib.contextmanager
def followed(folder: Path) -> Iterator[Path]:
    """A copy of the repository in which the pages were followed, in place of the repository."""
    # Compiled files too, which is faster; but not those that another process is writing.
    half_written = shutil.ignore_patterns("*.pyc.*")
    for package in PACKAGES:
        shutil.copytree(ROOT / package, folder / package, ignore=half_written)
    shutil.copytree(ROOT / "docs", folder / "docs", ignore=shutil.ignore_patterns("figures"))
    for block in (block for page in PAGES for block in blocks(page)):
        file = folder / block.title
        if block.kind == "python":
            assert max(map(len, block.text.splitlines())) <= 100, "the linter allows no more"
            assert not file.exists(), f"{block.title} exists already"
            file.write_text(block.text, encoding="utf-8")
        elif block.kind == "diff":
            file.write_text(patched(file.read_text(encoding="utf-8"), block.text), encoding="utf-8")
    with pytest.MonkeyPatch.context() as patch:
        for name in imported():
            patch.delitem(sys.modules, name)
        patch.setattr(sys, "path", [str(folder), *sys.path])
        importlib.invalidate_caches()
        yield folder
        for name in imported():
            del sys.modules[name]


def imported() -> list[str]:
    """The modules of the packages that the copy replaces."""
    return [name for name in sys.modules if name.partition(".")[0] in PACKAGES]


def patched(text: str, diff: str) -> str:
    """A + line enters after the line above it in the diff; a - line goes."""
    lines, at = text.splitlines(), 0
    for line in diff.splitlines():
        if line.startswith("+"):
            lines.insert(at + 1, line[1:])
            at += 1
        else:
            at = lines.index(line[1:])
            if line.startswith("-"):
                del lines[at]
                at -= 1
    return "\n".join(lines) + "\n"


def copied(folder: Path, name: str) -> ModuleType:
    """A module of the copy, such as transformer_jax.testing.mixers."""
    module = importlib.import_module(name)
    assert module.__file__ is not None and Path(module.__file__).is_relative_to(folder)
    return module


def run_commands(page: str, folder: Path) -> None:
    """Runs the `python SCRIPT` commands of the page in the copy."""
    text = "".join(block.text for block in blocks(page) if block.kind == "sh")
    for script in re.findall(r"^python (\S+)$", text, re.MULTILINE):
        runpy.run_path(str(folder / script), run_name="__main__")


def tests_in(
    tree: Path, folder: Path, module: str, value: object = None
) -> list[Callable[[], None]]:
    """The tests of a module of the copy, each with the arguments of a row of its parameters.

    Args:
        tree: the copy.
        folder: an empty one, for `tmp_path`.
        module: such as contract.test_mixers.
        value: an argument; without it, all rows.
    """
    found: list[Callable[[], None]] = []
    for name, test in vars(copied(tree, f"tests.{module}")).items():
        for row in _rows(test) if name.startswith("test_") else ():
            if value is not None and value not in row.values():
                continue
            if "tmp_path" in inspect.signature(test).parameters:
                row["tmp_path"] = folder / module / str(len(found))
                row["tmp_path"].mkdir(parents=True)
            found.append(partial(test, **row))
    return found


def _rows(test: Any) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = [{}]
    for mark in getattr(test, "pytestmark", ()):
        names, values = mark.args
        if isinstance(names, str):
            named = [{names: value} for value in values]
        else:
            named = [dict(zip(names, row, strict=True)) for row in values]
        rows = [row | each for row in rows for each in named]
    return rows


def run_all(tests: list[Callable[[], None]], at_least: int = 1) -> None:
    """Runs the tests, of which there have to be so many."""
    assert len(tests) >= at_least
    for test in tests:
        test()
