"""The WMT recipes, compiled by XLA's CUDA compiler for GPUs that are only described.

Each takes minutes on two cores. `./run plans` makes the environment that has the compiler.
"""

import re

import pytest

from tests.plan import described
from tests.plan.described import ONE_LAYER, mixer_keys, plan, skip_without

#: What JAX's allocator takes of an H100.
MEMORY = "iB of 59.33 GiB a device"


@pytest.fixture(scope="module", autouse=True)
def compiler():
    for module in ("jax_cuda13_plugin", "nvidia.cudnn"):
        skip_without(module)


def utilisation(text):
    return float(re.search(r"utilisation\s+([\d.]+) %", text)[1])


# A plan compiles the training step and both searches, and ends with status 3 if one does not fit.
@pytest.mark.slow
@pytest.mark.parametrize("recipe", ["wmt14_en_de_base", "wmt14_en_de_big"])
def test_the_recipe_compiles_and_fits(recipe):
    text = plan(recipe, "h100:1")
    assert text.count(MEMORY) == 4 and "DOES NOT FIT" not in text
    assert "by XLA's estimates" in text and "launches of" in text
    assert 10 < utilisation(text) < 80


@pytest.mark.slow
@pytest.mark.parametrize(
    ("topology", "devices"),
    [
        ("a100:4", "4 x NVIDIA A100 in a node"),
        ("h200:8", "8 x NVIDIA H200 in a node"),
        ("b200:2", "2 x NVIDIA B200 in a node"),
        ("h100:8x2", "16 x NVIDIA H100 in 2 nodes of 8"),
    ],
)
def test_plans_for_other_gpus_and_nodes(topology, devices):
    text = plan("quickstart", topology, *ONE_LAYER)
    assert f"plan for {devices}; mesh data" in text
    assert "all-reduce" in text
    assert ("by XLA's estimates" in text) == (topology != "a100:4")
    assert 0 < utilisation(text) < 80


@pytest.mark.slow
def test_attention_is_one_kernel_for_the_rows_and_heads_of_each_device():
    found = described.printed("tests.plan.compiled_attention", "h100:8")
    kernels = {name: sizes for name, sizes in found["calls"] if name.startswith("__cudnn$fmha")}
    assert len(kernels) == 2
    for sizes in kernels.values():  # of 8 rows, 8 heads of queries and 2 of keys
        assert sizes[:2] == [[2, 512, 4, 64], [2, 640, 1, 64]]
    assert found["collectives"] == {}


@pytest.mark.slow
def test_a_step_has_few_kernels():
    found = described.printed("tests.plan.compiled_kernels", "h100:1")
    # Queries, values and outputs of three layers of attention, and the ends of two feed-forwards.
    assert found["products"]["BIAS"] == 11 and found["products"]["BIAS_RELU"] == 2
    assert found["loops"] == 0  # over chunks of the logits, each of which waits for the host
    assert found["kernels"] < 290  # 330 if each gradient is squared and summed by itself


@pytest.mark.slow
def test_the_kernels_of_check_compile():
    found = described.printed("tests.checks.compiled_check", "h100:1")
    assert found == {"bfloat16": "cudnn", "float32": "blockwise"}


@pytest.mark.slow
def test_the_compiler_gets_the_options_it_takes_and_flops_are_those_of_any_device():
    found = described.printed("tests.plan.compiled_step", "h100:1")
    assert found["is_as_wanted"]  # without the name that is made up
    assert found["cublas"] == [True, False]
    outside, inside = found["flops"]
    assert outside == inside > 0


@pytest.mark.slow
def test_a_batch_that_is_too_large_is_refused_with_advice():
    described.check_refusal_of_a_large_batch("h100:1")


@pytest.mark.slow
@pytest.mark.parametrize("keys", mixer_keys())
def test_every_mixer_compiles_and_fits(keys):
    text = plan("wmt14_en_de_base", "h100:1", *ONE_LAYER, *keys)
    assert text.count(MEMORY) == 4 and "DOES NOT FIT" not in text
