"""Every command of ours in docs/launch.md and docs/scale.md is one that the code accepts."""

import re
import shlex
from pathlib import Path

import pytest

from transformer_jax.cli.main import build_parser
from transformer_jax.cli.train import parse_overrides
from transformer_jax.plan.topology import GENERATIONS
from transformer_jax.training.config import load_recipe, override

ROOT = Path(__file__).parents[1]
PROGRAM = re.compile(r"\bpython (train|eval)\.py (.*)|^transformer-jax (\w+) (.*)")


def commands(page: str) -> list[list[str]]:
    """The arguments of `transformer-jax` in the page's fenced blocks, however it is called."""
    text = (ROOT / "docs" / page).read_text(encoding="utf-8")
    found = []
    for block in re.findall(r"^```(?:sh|yaml)\n(.*?)^```$", text, re.DOTALL | re.MULTILINE):
        # A line that ends in a backslash goes on, and so does one of YAML's `>-`.
        lines = re.sub(r"\\?\n\s+(?=--)", " ", block).splitlines()
        for line in lines:
            match = PROGRAM.search(line.strip())
            if match:
                name, rest = match[1] or match[3], match[2] or match[4]
                rest = re.split(r"\s[<>#|&]|;|\"$", rest)[0]
                found.append([name, *shlex.split(rest)])
    return found


PAGES = ("launch.md", "scale.md")
COMMANDS = [(page, command) for page in PAGES for command in commands(page)]


@pytest.mark.parametrize(("page", "arguments"), COMMANDS, ids=lambda value: " ".join(value))
def test_command_lines_parse(page, arguments):
    args, rest = build_parser().parse_known_args(arguments)
    if args.command == "train":
        override(load_recipe(str(ROOT / args.config)), parse_overrides(rest))
        assert args.plan or args.workdir
        assert args.plan or not args.plan_topology
        if args.plan_topology:
            assert args.plan_topology.split(":")[0] in GENERATIONS
    else:
        assert rest == []


def test_every_way_to_launch_has_its_command():
    found = [" ".join(command) for command in commands("launch.md")]
    assert len(found) >= 11
    assert sum("--distributed" in command for command in found) == 3  # slice, SLURM, Kubernetes
    assert sum("--coordinator_address" in command for command in found) == 1
    assert sum(command.startswith("train") for command in found) >= 9


def test_the_reader_of_pages_sees(tmp_path, monkeypatch):
    lines = ["```sh", "srun .venv/bin/python train.py --a=1 \\", "    --b=2 --c"]
    page = "\n".join([*lines, "until python eval.py --x; do", "```", ""])
    (tmp_path / "docs").mkdir()
    (tmp_path / "docs" / "page.md").write_text(page, encoding="utf-8")
    monkeypatch.setitem(globals(), "ROOT", tmp_path)
    assert commands("page.md") == [["train", "--a=1", "--b=2", "--c"], ["eval", "--x"]]
