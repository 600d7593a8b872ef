"""The topologies of docs/launch.md and docs/scale.md exist; the SLURM script does what it says."""

import math
import os
import re
import subprocess

import pytest

from tests.pages import blocks, commands
from transformer_jax.plan.gpu import NODES
from transformer_jax.plan.tpu import TPUS

#: How many sides a slice of each generation has; those of two sides are powers of two up to 16.
NUM_SIDES = {"v4": 3, "v5e": 2, "v5p": 3, "v6e": 2}
TOPOLOGIES = {
    flag.partition("=")[2]
    for page in ("docs/launch.md", "docs/scale.md", "docs/results.md", "docs/usage.md")
    for command in commands(page)
    for flag in command
    if flag.startswith("--plan_topology=")
}


@pytest.mark.parametrize("topology", sorted(TOPOLOGIES))
def test_it_exists(topology: str) -> None:
    assert tuple(NUM_SIDES) == tuple(TPUS)
    generation, _, text = topology.partition(":")
    if generation in NODES:
        assert re.fullmatch(r"[1-8](x\d+)?", text)
        return
    sides = [int(side) for side in text.split("x")]
    assert len(sides) == NUM_SIDES[generation]
    if len(sides) == 2:
        assert all(side <= 16 and math.log2(side).is_integer() for side in sides)
        assert sides[0] <= sides[1] <= 2 * sides[0]


@pytest.fixture
def slurm_script():
    (script,) = [block for block in blocks("docs/launch.md", "sh") if "#SBATCH" in block]
    return script


def test_slurm_starts_a_task_for_each_gpu(slurm_script):
    """JAX gives a task under SLURM one GPU."""
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
