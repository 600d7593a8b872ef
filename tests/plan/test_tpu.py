"""The WMT recipes, compiled by the TPU's own compiler for slices that are only described.

Each takes minutes on two cores. libtpu should not be installed in the environment of CPU runs, so
the plans run in another interpreter: TPU_PYTHON=.venv-tpu/bin/python (default: this one).
"""

import os
import re
import sys
from functools import partial

import pytest

from tests.plan import described
from tests.plan.described import ONE_LAYER, mixer_keys, skip_without

PYTHON = os.environ.get("TPU_PYTHON", sys.executable)


@pytest.fixture(scope="module", autouse=True)
def libtpu():
    skip_without("libtpu", PYTHON, "pip install libtpu, and set TPU_PYTHON to its interpreter")


plan = partial(described.plan, PYTHON)


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
def test_a_batch_that_is_too_large_is_refused_with_advice():
    described.check_refusal_of_a_large_batch(PYTHON, "v5e:2x4")


@pytest.mark.slow
@pytest.mark.parametrize("keys", mixer_keys())
def test_every_mixer_compiles_and_fits(keys):
    text = plan("wmt14_en_de_base", "v5e:2x4", *ONE_LAYER, *keys)
    assert text.count("iB of 16.00 GiB a device") == 4 and "DOES NOT FIT" not in text
