"""What each mixer costs as sequences grow, as the compiler counts it.

Forward and backward of one mixer of the base model's width, in each role it plays, are
compiled at five lengths and never run. A mixer that does not call itself `quadratic` there must
at most double its temporary memory and its FLOPs, within the margins below, from 4,096
tokens to 8,192; one that does must not.

XLA counts the body of a loop once, however often it runs, which flatters everything that
works in chunks. So beside XLA's FLOPs stand those of the products of the traced program, in which a
loop counts as often as it runs, and both are held to the margin.

    pytest -m slow -s tests/test_mixers_cost.py     # prints the table
"""

from functools import cache

import jax
import jax.numpy as jnp
import pytest
from jax.extend.core import jaxprs_in_params

import transformer_jax as tj
from transformer_jax.mixers.registry import CROSS_MIXERS, MIXERS
from transformer_jax.models.flops import count

LENGTHS = (1024, 2048, 4096, 8192, 16384)
FROM, TO = 4096, 8192
MEMORY_GROWTH, FLOPS_GROWTH = 2.2, 2.3
D_MODEL, HEADS = 512, 8

CASES = [
    (name, role)
    for name, cls in MIXERS.items()
    for role in ("encoder", "decoder")
    if role not in cls.refuses
] + [(name, "cross") for name in CROSS_MIXERS]


def class_of(name, role):
    return (CROSS_MIXERS if role == "cross" else MIXERS)[name]


def is_quadratic(name, role):
    stated = class_of(name, role).quadratic
    return stated if role == "cross" else role in stated


def traced(name, role, length):
    """Forward and backward of sum(y * cotangent), traced for one sequence of this length.

    With the most expensive hook: a bias with parameters, which must not become an L x L array.
    """
    kind, options = class_of(name, role), {}
    if role != "cross":
        position = tj.T5() if "bias" in kind.honours else tj.NoPosition()
        options = {"causal": role == "decoder", "position": position}
    layer = tj.MixerLayer(kind(), D_MODEL, HEADS, max_length=length, **options)

    def loss(params, x, mask, cotangent):
        if role == "cross":
            return (layer.read(params, x, layer.project(params, x, mask)) * cotangent).sum()
        return (layer.apply(params, x, mask) * cotangent).sum()

    x = jax.ShapeDtypeStruct((1, length, D_MODEL), jnp.float32)
    mask = jax.ShapeDtypeStruct((1, length), bool)
    params = jax.eval_shape(layer.init, jax.random.key(0))
    return jax.jit(jax.grad(loss, (0, 1))).trace(params, x, mask, x)


@cache
def costs(name, role, length):
    """(XLA's FLOPs, those of the traced program's products, bytes of temporary memory)."""
    program = traced(name, role, length)
    compiled = program.lower().compile()
    return (
        compiled.cost_analysis()["flops"],
        count(program.jaxpr),
        compiled.memory_analysis().temp_size_in_bytes,
    )


def shapes(jaxpr):
    """Shapes of every array in the program, loop bodies included."""
    for eqn in jaxpr.eqns:
        yield from (var.aval.shape for var in eqn.outvars if hasattr(var.aval, "shape"))
        for body in jaxprs_in_params(eqn.params):
            yield from shapes(body)


def square(name, role):
    """Shapes in which two axes are as long as the sequence."""
    program = traced(name, role, FROM).jaxpr.jaxpr
    return {shape for shape in shapes(program) if sum(n >= FROM for n in shape) > 1}


@pytest.mark.slow
@pytest.mark.parametrize(("name", "role"), CASES)
def test_growth(name, role):
    print()
    for length in LENGTHS:
        xla, counted, memory = costs(name, role, length)
        print(
            f"{name:12} {role:8} L={length:6,} GFLOPs: XLA {xla / 1e9:9.2f}, "
            f"with loops {counted / 1e9:9.2f}; temporary MiB {memory / 2**20:9.1f}"
        )
    pairs = zip(costs(name, role, TO), costs(name, role, FROM), strict=True)
    xla, counted, memory = (after / before for after, before in pairs)
    print(f"{name:12} {role:8} doubled: FLOPs {xla:.2f}, {counted:.2f}; memory {memory:.2f}")
    if is_quadratic(name, role):
        assert max(xla, counted) > FLOPS_GROWTH or memory > MEMORY_GROWTH
    else:
        assert max(xla, counted) <= FLOPS_GROWTH
        assert memory <= MEMORY_GROWTH


@pytest.mark.parametrize(("name", "role"), CASES)
def test_only_a_quadratic_mixer_builds_an_array_of_length_by_length(name, role):
    if not is_quadratic(name, role):
        assert not square(name, role)


def test_the_search_for_such_arrays_finds_them():
    assert (1, HEADS, FROM, FROM) in square("full", "decoder")
    assert (1, HEADS, FROM, FROM) in square("full", "cross")
