"""What is compiled depends on the platform it is compiled for, not on the one that traces."""

import re
from pathlib import Path

import jax
import jax.numpy as jnp
import pytest

from tests.small import small_model
from transformer_jax.models import api
from transformer_jax.ops import losses

PACKAGE = Path(__file__).parents[2] / "transformer_jax"
#: Folders of functions that are traced.
TRACED = ("ops", "layers", "positions", "mixers", "models", "decoding")
#: `sharding.target` falls back to the devices of the process where there is no mesh.
EXEMPT = {"ops/sharding.py"}
ASKS = re.compile(
    r"default_backend\(|jax\.(local_)?device(s|_count)\(|process_count\(|\.platform\b(?! import)"
)


def stable_hlo(function, *arguments, platform):
    return jax.jit(function).trace(*arguments).lower(lowering_platforms=(platform,)).as_text()


def test_a_training_step_traced_here_is_a_tpus_when_lowered_for_one(monkeypatch):
    # One row of logits on a CPU, all of them elsewhere.
    rows, length, size = 4, 6, 40
    monkeypatch.setitem(losses._FORMS, "cpu", losses._Form(length * size))
    low = {"dtype": "bfloat16", "matmul_dtype": "bfloat16"}
    model = small_model(size, d_model=8, d_ff=16, max_length=8, **low)
    ids, mask = jnp.ones((rows, length), jnp.int32), jnp.ones((rows, length), bool)
    batch = {"source": ids, "source_mask": mask, "target": ids, "target_mask": mask}

    def gradient(params):
        return jax.grad(lambda p: api.loss(model, p, batch)[0])(params)

    params = api.abstract_params(model)
    cpu, tpu = (stable_hlo(gradient, params, platform=name) for name in ("cpu", "tpu"))
    logits = re.compile(rf"-> tensor<(\d+)x{size}xf32>")
    assert {int(n) for n in logits.findall(cpu)} >= {length}
    assert length not in {int(n) for n in logits.findall(tpu)}
    assert rows * length in {int(n) for n in logits.findall(tpu)}
    assert "LayoutConstraint" in cpu
    assert "LayoutConstraint" not in tpu


@pytest.mark.parametrize("folder", TRACED)
def test_nothing_that_is_traced_asks_for_the_platform_of_the_process(folder):
    found = [
        f"{path.relative_to(PACKAGE)}:{number}: {line.strip()}"
        for path in sorted((PACKAGE / folder).rglob("*.py"))
        if path.relative_to(PACKAGE).as_posix() not in EXEMPT
        for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), start=1)
        if ASKS.search(line) and "`" not in line
    ]
    assert found == [], "use ops.platform.by_platform, and ops.sharding.num_shards for devices"


def test_the_check_sees():
    assert ASKS.search('limit = 1 if jax.default_backend() == "cpu" else 2')
    assert ASKS.search("if jax.device_count() > 1:")
    assert not ASKS.search("return by_platform(f, x, cpu=1, other=2)")
