"""Every command of ours in docs/launch.md and docs/scale.md is one that the code accepts."""

import math
import os
import re
import shlex
import subprocess
import tomllib
from pathlib import Path

import pytest

from transformer_jax.cli.main import build_parser
from transformer_jax.cli.train import parse_overrides
from transformer_jax.config import override
from transformer_jax.plan.topology import GENERATIONS
from transformer_jax.recipes import load_recipe

ROOT = Path(__file__).parents[1]
PROGRAM = re.compile(r"\bpython (train|eval)\.py (.*)|^transformer-jax (\w+) (.*)")


#: How many sides a slice of each generation has; those of two sides are powers of two up to 16.
NUM_SIDES = {"v4": 3, "v5e": 2, "v5p": 3, "v6e": 2}


def blocks(page: str) -> list[str]:
    """The page's fenced blocks of shell and YAML."""
    text = (ROOT / "docs" / page).read_text(encoding="utf-8")
    return re.findall(r"^```(?:sh|yaml)\n(.*?)^```$", text, re.DOTALL | re.MULTILINE)


def commands(page: str) -> list[list[str]]:
    """The arguments of `transformer-jax` in the page's fenced blocks, however it is called."""
    found = []
    for block in blocks(page):
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
            assert_is_a_slice(args.plan_topology)
    else:
        assert rest == []


def assert_is_a_slice(topology: str) -> None:
    assert tuple(NUM_SIDES) == GENERATIONS
    generation, _, text = topology.partition(":")
    sides = [int(side) for side in text.split("x")]
    assert len(sides) == NUM_SIDES[generation], topology
    if len(sides) == 2:
        assert all(side <= 16 and math.log2(side).is_integer() for side in sides), topology
        assert sides[0] <= sides[1] <= 2 * sides[0], topology


@pytest.mark.parametrize("page", ["docs/launch.md", "docs/scale.md", "README.md"])
def test_what_is_set_up_can_be(page):
    """Each extra named after `./run setup`, there and in the script's own help, is one."""
    text = (ROOT / page).read_text(encoding="utf-8")
    named = [lst.split() for lst in re.findall(r"\./run setup((?: [a-z0-9]+)+)", text)]
    if page == "docs/launch.md":
        assert len(named) >= 5
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    extras = set(project["optional-dependencies"])
    assert {extra for extras_of_one in named for extra in extras_of_one} <= extras
    usage = re.search(r"extras: ([a-z0-9\s]+?)\nEach", (ROOT / "run").read_text(encoding="utf-8"))
    assert set(usage[1].split()) == extras


@pytest.fixture
def slurm_script():
    (script,) = [block for block in blocks("launch.md") if "#SBATCH" in block]
    return script


def test_slurm_starts_a_task_for_each_gpu(slurm_script):
    """JAX gives a task under SLURM one GPU (tests/parallel/test_detection.py)."""
    asked = dict(re.findall(r"^#SBATCH --([\w-]+)=(\S+)$", slurm_script, re.MULTILINE))
    assert asked["ntasks-per-node"] == asked["gpus-per-node"]


@pytest.mark.parametrize(("status", "requeued"), [(0, 0), (143, 1), (2, 0)])
def test_slurm_asks_for_another_turn_after_a_preemption_alone(
    tmp_path, slurm_script, status, requeued
):
    for name, line in {"srun": f"exit {status}", "scontrol": f"echo $* >>{tmp_path}/asked"}.items():
        (tmp_path / name).write_text(f"#!/bin/sh\n{line}\n")
        (tmp_path / name).chmod(0o755)
    environment = {"PATH": f"{tmp_path}:{os.environ['PATH']}", "SLURM_JOB_ID": "7"}
    done = subprocess.run(
        ["sh", "-c", slurm_script],
        env={**environment, "SLURM_SUBMIT_DIR": str(tmp_path)},
        timeout=60,
        check=False,
    )
    assert done.returncode == status
    asked = tmp_path / "asked"
    assert (asked.read_text() if asked.exists() else "") == "requeue 7\n" * requeued


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
