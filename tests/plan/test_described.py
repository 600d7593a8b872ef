"""Plans for TPUs and GPUs that are not here, by their own compilers.

Each takes minutes on two cores. `./run plans` makes the environment that has the compilers, which
should not be in that of CPU runs.
"""

import importlib.util
import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from transformer_jax.mixers.registry import CROSS_MIXERS, MIXERS

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[2]
ENVIRONMENT = {**os.environ, "JAX_PLATFORMS": "cpu", "TPU_SKIP_MDS_QUERY": "1"}
ONE_LAYER = ("--config.model.encoder.num_layers=1", "--config.model.decoder.num_layers=1")
#: What a plan says at its start, and the lines of XLA's alarm that a compilation is slow, which
#: happens on a busy machine.
EXPECTED = re.compile(
    r"compiling the training step and the searches|"
    r".*slow_operation_alarm\.cc|\*+$|\[Compiling module .*Very slow compile\?|The operation took |"
    r"WARNING: All log messages before absl::InitializeLog"
)
#: What a program can have of a device; of an H100 JAX's allocator takes no more.
MEMORY = {"v5e": "iB of 16.00 GiB a device", "h100": "iB of 59.33 GiB a device"}


def is_gpu(topology):
    return not topology.startswith("v")


def run(topology, *arguments):
    """Runs Python; skips the test if the compiler is not installed."""
    for module in ("jax_cuda13_plugin", "nvidia.cudnn") if is_gpu(topology) else ("libtpu",):
        if importlib.util.find_spec(module) is None:
            pytest.skip(f"no {module}: use ./run plans")
    options = {"cwd": ROOT, "env": ENVIRONMENT, "capture_output": True, "text": True}
    return subprocess.run([sys.executable, *arguments], timeout=7200, check=False, **options)


def run_plan(recipe, topology, *more):
    """Runs `train.py --plan` without a search for the largest batch."""
    flags = [f"--config=configs/{recipe}.py", "--plan", f"--plan_topology={topology}"]
    return run(topology, "train.py", *flags, "--plan_no_search", *more)


def plan(recipe, topology, *more):
    """The text of a plan that fits."""
    done = run_plan(recipe, topology, *more)
    assert done.returncode == 0, done.stdout + done.stderr[-2000:]
    unexpected = [line for line in done.stderr.splitlines() if not EXPECTED.match(line)]
    assert not any(unexpected), unexpected[-20:]
    return done.stdout


def printed(program, topology):
    """What `compiled.py` prints."""
    done = run(topology, "-m", "tests.plan.compiled", program, topology)
    assert done.returncode == 0, done.stderr[-3000:]
    return json.loads(done.stdout.splitlines()[-1])


def utilisation(text):
    return float(re.search(r"utilisation\s+([\d.]+) %", text)[1])


def check_fits(text, topology):
    # The training step, both searches, and the parameters alone.
    assert text.count(MEMORY[topology.partition(":")[0]]) == 4 and "DOES NOT FIT" not in text


@pytest.mark.parametrize(
    ("recipe", "topology", "more"),
    [
        ("wmt14_en_de_base", "v5e:2x4", []),
        ("wmt14_en_de_big", "v5e:2x4", []),
        ("wmt14_en_de_big", "v5e:16x16", ["--config.batch.tokens=800000"]),
        ("wmt14_en_de_base", "h100:1", []),
        ("wmt14_en_de_big", "h100:1", []),
    ],
)
def test_the_recipe_compiles_and_fits(recipe, topology, more):
    text = plan(recipe, topology, *more)
    check_fits(text, topology)
    if is_gpu(topology):
        assert "launches of" in text
        assert 10 < utilisation(text) < 80
    else:
        assert "all-reduce" in text and utilisation(text) > 5


@pytest.mark.parametrize(
    ("topology", "devices"),
    [
        ("v4:2x2x1", "4 x TPU v4 in a slice"),  # one device a chip
        ("v5p:2x2x1", "4 x TPU v5p in a slice"),
        ("v6e:2x4", "8 x TPU v6e in a slice"),
        ("a100:4", "4 x NVIDIA A100 in a node; mesh data"),
        ("h200:8", "8 x NVIDIA H200 in a node; mesh data"),
        ("b200:2", "2 x NVIDIA B200 in a node; mesh data"),
        ("h100:8x2", "16 x NVIDIA H100 in 2 nodes of 8; mesh data"),
    ],
)
def test_plans_for_other_devices(topology, devices):
    text = plan("quickstart", topology, *ONE_LAYER)
    assert f"plan for {devices}" in text
    assert "all-reduce" in text
    assert 0 < utilisation(text) < (80 if is_gpu(topology) else 100)


def test_attention_on_a_tpu_is_one_kernel_for_the_rows_and_heads_of_each_device():
    found = printed("attention", "v5e:2x4")
    kernels = {name: sizes for name, sizes in found["calls"] if name.startswith("tpu_custom_call")}
    for kernel in ("fwd", "dq", "dkv"):
        (sizes,) = (s for name, s in kernels.items() if f" splash_mha_{kernel}_" in name)
        # Of 8 rows, 8 heads of queries and 2 of keys; 640 keys are padded to two equal blocks.
        assert [size for size in sizes if size[-1] == 64][:2] == [[2, 4, 512, 64], [2, 1, 768, 64]]
    assert len(kernels) == 3
    assert found["collectives"] == {}


def test_attention_on_a_gpu_is_one_kernel_for_the_rows_and_heads_of_each_device():
    found = printed("attention", "h100:8")
    kernels = {name: sizes for name, sizes in found["calls"] if name.startswith("__cudnn$fmha")}
    assert len(kernels) == 2
    for sizes in kernels.values():  # of 8 rows, 8 heads of queries and 2 of keys
        assert sizes[:2] == [[2, 512, 4, 64], [2, 640, 1, 64]]
    assert found["collectives"] == {}


def test_a_step_has_few_kernels():
    found = printed("kernels", "h100:1")
    # Queries, values and outputs of three layers of attention, and the ends of two feed-forwards.
    assert found["products"]["BIAS"] == 11 and found["products"]["BIAS_RELU"] == 2
    assert found["loops"] == 0  # over chunks of the logits, each of which waits for the host
    assert found["kernels"] < 290  # 330 if each gradient is squared and summed by itself


@pytest.mark.parametrize(
    ("topology", "kernels"),
    [
        ("v5e:2x2", {"bfloat16": "splash", "float32": "splash"}),
        ("h100:1", {"bfloat16": "cudnn", "float32": "blockwise"}),
    ],
)
def test_the_kernels_of_check_compile(topology, kernels):
    assert printed("check", topology) == kernels


@pytest.mark.parametrize("topology", ["v5e:2x4", "h100:1"])
def test_a_batch_that_is_too_large_is_refused_with_advice(topology):
    tokens = "--config.batch.tokens=4000000"
    done = run_plan("wmt14_en_de_base", topology, *ONE_LAYER, tokens)
    assert done.returncode == 3, done.stdout + done.stderr[-2000:]
    assert "DOES NOT FIT" in done.stdout
    assert "--config.model.remat=true" in done.stdout


def mixer_keys():
    """Every mixer in each role it supports, as overrides of a recipe."""
    for name, cls in MIXERS.items():
        roles = [role for role in ("encoder", "decoder") if role not in cls.refuses]
        yield pytest.param([f"--config.model.{role}.mixers={name}" for role in roles], id=name)
    for name in CROSS_MIXERS:
        yield pytest.param([f"--config.model.cross={name}"], id=f"cross-{name}")


@pytest.mark.parametrize("topology", ["v5e:2x4", "h100:1"])
@pytest.mark.parametrize("keys", mixer_keys())
def test_every_mixer_compiles_and_fits(keys, topology):
    check_fits(plan("wmt14_en_de_base", topology, *ONE_LAYER, *keys), topology)
