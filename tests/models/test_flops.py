"""FLOPs of the model, compared with the formula derived by hand."""

from dataclasses import replace
from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.experimental import pallas as pl

from tests.small import small_model
from transformer_jax.models import api
from transformer_jax.models.config import StackConfig
from transformer_jax.models.flops import count, train_step_flops
from transformer_jax.ops.sharding import layout
from transformer_jax.plan.hlo import parse, walk
from transformer_jax.plan.roofline import flops


def test_products_in_scans_and_branches():
    def function(x, y):
        def body(carry, _):
            return carry @ y, None

        out, _ = jax.lax.scan(body, x, length=3)
        return jax.lax.cond(out.sum() > 0, lambda o: o @ y @ y, lambda o: o, out)

    jaxpr = jax.make_jaxpr(function)(jnp.ones((2, 4)), jnp.ones((4, 4)))
    assert count(jaxpr) == (3 + 2) * 2 * 2 * 4 * 4


def test_products_that_only_one_platform_has_do_not_count():
    def function(x, y):
        by_platform = {"tpu": lambda x: (x @ y) @ y, "default": lambda x: x @ y}
        return jax.lax.platform_dependent(x, **by_platform)

    jaxpr = jax.make_jaxpr(function)(jnp.ones((2, 4)), jnp.ones((4, 4)))
    assert count(jaxpr) == 2 * 2 * 4 * 4


def test_convolutions():
    kernel = jnp.ones((8, 3, 5))  # features, inputs, width
    jaxpr = jax.make_jaxpr(lambda x: jax.lax.conv(x, kernel, (1,), "VALID"))(jnp.ones((2, 3, 9)))
    assert count(jaxpr) == 2 * (2 * 8 * 5) * (3 * 5)


def test_the_body_of_a_kernel_counts_for_each_point_of_its_grid():
    def kernel(x, y, out):
        out[...] = x[...] @ y[...]

    call = pl.pallas_call(
        kernel,
        grid=(3, 2),
        in_specs=[
            pl.BlockSpec((8, 4), lambda i, j: (i, 0)),
            pl.BlockSpec((4, 16), lambda i, j: (0, j)),
        ],
        out_specs=pl.BlockSpec((8, 16), lambda i, j: (i, j)),
        out_shape=jax.ShapeDtypeStruct((24, 32), jnp.float32),
    )
    jaxpr = jax.make_jaxpr(call)(jnp.ones((24, 4)), jnp.ones((4, 32)))
    assert count(jaxpr) == 2 * 24 * 4 * 32


@pytest.mark.parametrize("lower", [True, False])
def test_a_triangular_system_counts_a_multiply_add_for_each_entry_below_the_diagonal(lower):
    solve = jax.vmap(lambda a, b: jax.scipy.linalg.solve_triangular(a, b, lower=lower))
    jaxpr = jax.make_jaxpr(solve)(jnp.ones((5, 6, 6)), jnp.ones((5, 6, 3)))
    assert count(jaxpr) == 5 * 6 * 6 * 3


def test_a_transformers_training_step():
    d, f, v, layers, rows, length = 16, 32, 50, 2, 4, 6
    stack = StackConfig(num_layers=layers)
    model = small_model(v, both=stack, d_model=d, d_ff=f, max_length=8)
    tokens = rows * length
    attention = 4 * d * d + 2 * length * d  # four projections; scores and their use
    forward = layers * (3 * attention + 2 * 2 * d * f) + d * v
    assert train_step_flops(model, rows, length) == 3 * 2 * tokens * forward


@pytest.mark.parametrize("devices", [1, 8])
def test_a_gpus_kernel_of_attention_counts_as_much_as_plain_attention(devices, monkeypatch):
    model = small_model(50, dtype="bfloat16", max_length=32)
    want = train_step_flops(model, 8, 32)
    gpus = np.array([SimpleNamespace(platform="gpu")] * devices)
    mesh = SimpleNamespace(devices=gpus, size=devices, shape={"data": devices})
    with layout(mesh, {"batch": "data", "heads": None}):
        assert train_step_flops(model, 8, 32) == want
    monkeypatch.setattr(jax, "default_backend", lambda: "gpu")
    assert train_step_flops(model, 8, 32) == want


@pytest.mark.slow  # compiles them, with and without the loop
def test_layers_as_a_loop_count_as_often_as_it_runs():
    model = small_model(50, encoder=StackConfig(2), decoder=StackConfig(4), max_length=8)
    ids, mask = jnp.ones((4, 6), jnp.int32), jnp.ones((4, 6), bool)
    batch = dict(source=ids, source_mask=mask, target=ids, target_mask=mask)
    params = api.abstract_params(model)

    def compiled(model):
        gradient = jax.jit(jax.grad(lambda params: api.loss(model, params, batch)[0]))
        module = parse(gradient.lower(params).compile().as_text())
        return sum(flops(module, one) for one in walk(module))

    loops = replace(model, scan_layers=True)
    assert train_step_flops(loops, 4, 6) == train_step_flops(model, 4, 6)
    assert compiled(model) == train_step_flops(model, 4, 6)
    # Scores and their use, 4 * 2 * 6 * 6 * 16 FLOPs each, are computed again for the backward pass.
    again = (2 + 4 * 2) * 2 * (4 * 2 * 6 * 6 * 16)
    assert compiled(loops) == compiled(model) + again
