"""What README.md promises: its length, its two commands, its example, its table of recipes."""

import re
from typing import Any

import jax
import numpy as np

import transformer_jax as tj
from tests.pages import ROOT, blocks, text_of


def test_it_is_short() -> None:
    assert len(text_of("README.md").splitlines()) <= 130


def test_the_first_commands_are_quickstart_and_test() -> None:
    first = blocks("README.md", "sh")[0]
    assert [line.split()[:2] for line in first.splitlines()] == [
        ["./run", "quickstart"],
        ["./run", "test"],
    ]


def test_the_library_example_runs() -> None:
    (example,) = blocks("README.md", "python")
    names: dict[str, Any] = {}
    exec(compile(example, "README.md", "exec"), names)
    assert names["loss"] < 2.8  # log(16): it has learned something
    shapes = jax.tree.map(np.shape, names["gradient"])
    assert shapes == jax.tree.map(np.shape, tj.init(names["config"], jax.random.key(0)))


def test_every_recipe_is_named() -> None:
    named = re.findall(r"\[`(\w+)`\]\(configs/(\w+)\.py\)", text_of("README.md"))
    assert sorted(name for name, _ in named) == sorted(p.stem for p in ROOT.glob("configs/*.py"))
    assert all(name == file for name, file in named)
