"""The WMT recipes, compiled by the TPU's own compiler for slices that are only described.

Each takes minutes on two cores. `./run plans` makes the environment that has libtpu, which should
not be in that of CPU runs.
"""

import re

import pytest

from tests.plan import described
from tests.plan.described import ONE_LAYER, mixer_keys, plan, skip_without


@pytest.fixture(scope="module", autouse=True)
def libtpu():
    skip_without("libtpu")


# A plan compiles the training step and both searches, and ends with status 3 if one does not fit.
@pytest.mark.slow
@pytest.mark.parametrize(
    ("recipe", "topology", "more"),
    [
        ("wmt14_en_de_base", "v5e:2x4", []),
        ("wmt14_en_de_big", "v5e:2x4", []),
        ("wmt14_en_de_big", "v5e:16x16", ["--config.batch.tokens=800000"]),
    ],
)
def test_the_recipe_compiles_and_fits(recipe, topology, more):
    text = plan(recipe, topology, *more)
    assert text.count("iB of 16.00 GiB a device") == 4 and "DOES NOT FIT" not in text
    assert "all-reduce" in text
    assert float(re.search(r"utilisation\s+([\d.]+) %", text)[1]) > 5


@pytest.mark.slow
@pytest.mark.parametrize(
    ("topology", "devices"),
    [("v4:2x2x1", "4 x TPU v4"), ("v5p:2x2x1", "4 x TPU v5p"), ("v6e:2x4", "8 x TPU v6e")],
)
def test_plans_for_other_generations(topology, devices):
    text = plan("quickstart", topology)
    assert f"plan for {devices} in a slice" in text  # one device a chip, on v4 too
    assert "all-reduce" in text
    assert 0 < float(re.search(r"utilisation\s+([\d.]+) %", text)[1]) < 100


@pytest.mark.slow
def test_attention_is_one_kernel_for_the_rows_and_heads_of_each_device():
    found = described.printed("tests.plan.compiled_attention", "v5e:2x4")
    kernels = {name: sizes for name, sizes in found["calls"] if name.startswith("tpu_custom_call")}
    for kernel in ("fwd", "dq", "dkv"):
        (sizes,) = (s for name, s in kernels.items() if f" splash_mha_{kernel}_" in name)
        # Of 8 rows, 8 heads of queries and 2 of keys; 640 keys are padded to two equal blocks.
        assert [size for size in sizes if size[-1] == 64][:2] == [[2, 4, 512, 64], [2, 1, 768, 64]]
    assert len(kernels) == 3
    assert found["collectives"] == {}


@pytest.mark.slow
def test_the_kernels_of_check_compile():
    found = described.printed("tests.commands.check.compiled_check", "v5e:2x2")
    assert found == {"bfloat16": "splash", "float32": "splash"}


@pytest.mark.slow
def test_a_batch_that_is_too_large_is_refused_with_advice():
    described.check_refusal_of_a_large_batch("v5e:2x4")


@pytest.mark.slow
@pytest.mark.parametrize("keys", mixer_keys())
def test_every_mixer_compiles_and_fits(keys):
    text = plan("wmt14_en_de_base", "v5e:2x4", *ONE_LAYER, *keys)
    assert text.count("iB of 16.00 GiB a device") == 4 and "DOES NOT FIT" not in text
