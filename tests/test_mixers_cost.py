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
from flax import linen as nn
from jax.extend.core import jaxprs_in_params

from transformer_jax.mixers.base import MixerContext
from transformer_jax.mixers.registry import CROSS_MIXERS, MIXERS
from transformer_jax.models.flops import count
from transformer_jax.positions.base import Position, PositionConfig

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


class LearnedBias(Position):
    """The most expensive hook: a bias with parameters, which must not become an L x L array."""

    def setup(self):
        self.table = self.param("table", nn.initializers.normal(), (self.context.num_heads, 32))

    def bias(self, q_positions, k_positions):
        return self.table[:, jnp.abs(q_positions[:, None] - k_positions[None, :]) % 32]


def traced(name, role, length):
    """Forward and backward of sum(y * cotangent), traced for one sequence of this length."""
    cls, causal = class_of(name, role), role == "decoder"
    context = MixerContext(
        d_model=D_MODEL,
        num_heads=HEADS,
        head_dim=D_MODEL // HEADS,
        max_length=length,
        causal=causal,
    )
    if role == "cross":
        mixer = cls().build(context)

        def forward(module, x, mask):
            return module.read(x, module.project(x, mask))
    else:
        scheme = LearnedBias if "bias" in cls.honours else Position
        mixer = cls().build(context, scheme(PositionConfig(), context))

        def forward(module, x, mask):
            return module(x, mask)

    x = jax.ShapeDtypeStruct((1, length, D_MODEL), jnp.float32)
    mask = jax.ShapeDtypeStruct((1, length), bool)
    init = lambda x, mask: mixer.init(jax.random.key(0), x, mask, method=forward)  # noqa: E731
    variables = nn.unbox(jax.eval_shape(init, x, mask))

    def loss(variables, x, mask, cotangent):
        return (mixer.apply(variables, x, mask, method=forward) * cotangent).sum()

    return jax.jit(jax.grad(loss, (0, 1))).trace(variables, x, mask, x)


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
