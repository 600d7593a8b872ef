"""One device and eight give the same training, however the mesh is cut."""

import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

SCRIPT = """
import json, sys
sys.path.insert(0, sys.argv[1])
import jax, numpy as np
import toy
from dataclasses import replace
from transformer_jax.parallel.mesh import MeshConfig, make_mesh
from transformer_jax.training.loop import fit
from transformer_jax.training.optimizer import make_optimizer
from transformer_jax.training.state import state_shardings, init_state

assert jax.device_count() == 8
model = replace(toy.MODEL, source_vocab_size=16, target_vocab_size=16)
train = replace(toy.TRAIN, steps=8, optimizer=replace(toy.TRAIN.optimizer, name="adam"))
out = {}
for name, mesh in {
    "one": None, "data": MeshConfig(data=8), "fsdp": MeshConfig(data=1, fsdp=8),
    "all": MeshConfig(data=2, fsdp=2, tensor=2),
}.items():
    if mesh is None:
        devices = jax.devices()
        jax.devices = lambda *a: devices[:1]
    state = fit(model, train, toy.batches_from, mesh=mesh, progress=False)
    if mesh is None:
        jax.devices = lambda *a: devices
    leaves = jax.tree.leaves((state.params, state.opt_state))
    out[name] = {
        "params": [float(np.asarray(x).sum()) for x in jax.tree.leaves(state.params)],
        "bytes": sum(x.addressable_shards[0].data.nbytes for x in leaves),
    }
print(json.dumps(out))
"""

# Saved with 8 devices after 4 steps, then continued with fewer.
FEWER = """
import json, sys
sys.path.insert(0, sys.argv[1])
import jax, shutil, toy
from dataclasses import replace
from transformer_jax.parallel.mesh import MeshConfig
from transformer_jax.training.loop import fit
from transformer_jax.training.metrics import read_metrics

devices, folder = jax.devices(), sys.argv[2]
model = replace(toy.MODEL, source_vocab_size=16, target_vocab_size=16)
train = replace(toy.TRAIN, steps=4, log_every=1, ema_decay=0.9)
mesh = {8: MeshConfig(data=2, fsdp=2, tensor=2), 4: MeshConfig(data=1, fsdp=4),
        2: MeshConfig(), 1: MeshConfig()}
fit(model, train, toy.batches_from, mesh=mesh[8], workdir=folder, progress=False)
out = {}
for count in mesh:
    shutil.copytree(folder, f"{folder}-{count}")
    jax.devices = lambda *a: devices[:count]
    fit(model, replace(train, steps=8), toy.batches_from, mesh=mesh[count],
        workdir=f"{folder}-{count}", progress=False)
    out[count] = [(r["step"], r["loss"]) for r in read_metrics(f"{folder}-{count}") if "loss" in r]
print(json.dumps(out))
"""


def with_eight_devices(script, *arguments):
    here = Path(__file__).parent
    done = subprocess.run(
        [sys.executable, "-c", script, str(here), *arguments],
        cwd=here.parents[1],
        env={
            **os.environ,
            "JAX_PLATFORMS": "cpu",
            "XLA_FLAGS": "--xla_force_host_platform_device_count=8",
        },
        capture_output=True,
        text=True,
        timeout=500,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return json.loads(done.stdout.splitlines()[-1])


@pytest.fixture(scope="module")
def runs():
    return with_eight_devices(SCRIPT)


@pytest.mark.parametrize("mesh", ["data", "fsdp", "all"])
def test_parameters_are_those_of_one_device(runs, mesh):
    np.testing.assert_allclose(runs[mesh]["params"], runs["one"]["params"], atol=2e-4)


def test_fsdp_holds_fewer_bytes_per_device(runs):
    assert runs["fsdp"]["bytes"] < 0.3 * runs["data"]["bytes"]
    assert runs["data"]["bytes"] == runs["one"]["bytes"]


@pytest.mark.slow
def test_saved_on_eight_devices_and_continued_on_one_two_and_four(tmp_path):
    runs = with_eight_devices(FEWER, str(tmp_path / "run"))
    steps, expected = zip(*runs["8"], strict=True)
    assert list(steps) == list(range(1, 9))
    for count in ("4", "2", "1"):
        found_steps, found = zip(*runs[count], strict=True)
        assert found_steps == steps
        np.testing.assert_allclose(found, expected, atol=1e-5)
