"""Padding and batch-mates change nothing in sequences of 2,048 tokens, as in short ones.

Each mixer has its default options, so that windows, chunks and buckets have their usual sizes.
"""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import linen as nn

from tests.quick import quick
from transformer_jax.mixers.base import MixerContext
from transformer_jax.mixers.registry import CROSS_MIXERS, MIXERS
from transformer_jax.positions.registry import POSITIONS

LENGTH, REAL, D = 2048, 1500, 8
#: Sums of 2,048 terms in another order, of FFTs of another size.
TOLERANCE = 1e-4
ROLES = [
    (name, role)
    for name, kind in MIXERS.items()
    for role in ("encoder", "decoder")
    if role not in kind.refuses
]


def context(*, causal: bool = False) -> MixerContext:
    return MixerContext(d_model=D, num_heads=2, head_dim=4, max_length=LENGTH, causal=causal)


def inputs(seed: int) -> jax.Array:
    return jax.random.normal(jax.random.key(seed), (2, LENGTH, D))


#: Each way to pass over a long sentence once: windows, blocks, buckets, ranks, chunks, scans, FFTs.
QUICK = {"window", "bigbird", "reformer", "linformer", "linear", "gated_deltanet", "mamba", "s4"}


@pytest.mark.parametrize("case", quick(ROLES, *(x for x in dict(ROLES).items() if x[0] in QUICK)))
def test_mixer(case: tuple[str, str]) -> None:
    name, role = case
    causal = role == "decoder"
    position = POSITIONS["none"]().build(context(causal=causal))
    mixer = MIXERS[name]().build(context(causal=causal), position)
    mask = jnp.arange(LENGTH)[None] < jnp.array([LENGTH, REAL])[:, None]
    x = inputs(0)
    params = nn.unbox(jax.jit(mixer.init)(jax.random.key(1), x, mask))
    run = jax.jit(mixer.apply)
    whole = run(params, x, mask)[1, :REAL]
    assert np.abs(whole).max() > 0.01
    # Another sentence beside it, and other values in its padding.
    others = run(params, inputs(2).at[1, :REAL].set(x[1, :REAL]), mask)[1, :REAL]
    alone = run(params, x[1:, :REAL], mask[1:, :REAL])[0]
    for got in (others, alone):
        np.testing.assert_allclose(got, whole, atol=TOLERANCE * float(np.abs(whole).max()))


@pytest.mark.parametrize("name", list(CROSS_MIXERS))
def test_cross(name: str) -> None:
    mixer = CROSS_MIXERS[name]().build(context())
    mask = jnp.arange(LENGTH)[None] < jnp.array([LENGTH, REAL])[:, None]
    x, memory = inputs(0)[:, :64], inputs(1)

    params = nn.unbox(mixer.init(jax.random.key(1), x, memory, mask))
    run = jax.jit(lambda *args: mixer.apply(params, *args))
    whole = run(x, memory, mask)[1]
    others = run(x.at[0].set(0), inputs(2).at[1, :REAL].set(memory[1, :REAL]), mask)[1]
    alone = run(x[1:], memory[1:, :REAL], mask[1:, :REAL])[0]
    for got in (others, alone):
        np.testing.assert_allclose(got, whole, atol=TOLERANCE * float(np.abs(whole).max()))
