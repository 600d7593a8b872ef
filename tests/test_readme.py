"""What README.md shows works: its Python runs, its command lines parse, its files exist."""

import re
import shlex
from pathlib import Path
from typing import Any

import pytest

import transformer_jax as tj
from transformer_jax.cli.main import build_parser
from transformer_jax.cli.train import parse_overrides
from transformer_jax.config import override
from transformer_jax.recipes import load_recipe

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text(encoding="utf-8")


def blocks(language: str) -> list[str]:
    """The fenced blocks of a language, in order."""
    return re.findall(rf"^```{language}\n(.*?)^```$", README, re.DOTALL | re.MULTILINE)


def command_lines() -> list[str]:
    """Every command in the shell blocks, without comments, redirections and continued lines."""
    lines = "\n".join(blocks("sh")).replace("\\\n", " ").splitlines()
    return [re.split(r"\s[<>#]", line)[0].strip() for line in lines if line.strip()]


def commands_of(program: str) -> list[list[str]]:
    return [shlex.split(line)[1:] for line in command_lines() if line.startswith(program)]


def our_arguments() -> list[list[str]]:
    """The arguments of `transformer-jax`, however the README calls it."""
    scripts = [words for words in commands_of("python ") if words[0] in ("train.py", "eval.py")]
    return commands_of("transformer-jax ") + [
        [words[0].removesuffix(".py"), *words[1:]] for words in scripts
    ]


def test_the_first_commands_are_quickstart_and_test() -> None:
    assert [line.split()[1] for line in blocks("sh")[0].splitlines()] == ["quickstart", "test"]


def test_public_names() -> None:
    used = set(re.findall(r"\btj\.(\w+)", README))
    assert used
    assert used <= set(tj.__all__)


def test_library_examples_run() -> None:
    needs_no_run = [block for block in blocks("python") if "tj.load(" not in block]
    assert needs_no_run
    for block in needs_no_run:
        names: dict[str, Any] = {}
        exec(compile(block, "README.md", "exec"), names)
        assert names["logits"].shape == (32, 6, 16)
        assert names["loss"] < 2.8  # log(16): it has learned something
        assert [tokens.shape for tokens in names["output"]] == [(32, 1)] * 6


def test_example_with_a_run_calls_what_exists() -> None:
    (block,) = [block for block in blocks("python") if "tj.load(" in block]
    compile(block, "README.md", "exec")
    methods = re.findall(r"\btranslator\.(\w+)\(", block)
    assert methods == ["translate", "n_best", "score"]
    for method in methods:
        assert callable(getattr(tj.Translator, method))


@pytest.mark.parametrize("arguments", our_arguments(), ids=" ".join)
def test_command_lines_parse(arguments: list[str]) -> None:
    args, rest = build_parser().parse_known_args(arguments)
    if args.command == "train":
        override(load_recipe(str(ROOT / args.config)), parse_overrides(rest))
    else:
        assert rest == []


def test_recipes_table_lists_every_recipe() -> None:
    rows = re.findall(r"^\| \[`(\w+)`\]\(configs/(\w+)\.py\) \|", README, re.MULTILINE)
    assert sorted(name for name, _ in rows) == sorted(p.stem for p in ROOT.glob("configs/*.py"))
    assert all(name == file for name, file in rows)


def named_files() -> list[str]:
    """Every file of ours that the README links to or calls."""
    links = re.findall(r"\]\(((?!https?:|#)[^)]+)\)", README)
    called = re.findall(r"\b(?:benchmarks|configs|docs|tests)/\w[\w/]*\.(?:py|md)\b", README)
    return sorted({*links, *called})


@pytest.mark.parametrize("name", named_files())
def test_named_files_exist(name: str) -> None:
    assert (ROOT / name).exists()
