"""Sparse mixers of chosen options, built with a position scheme that uses both hooks.

Everything is jitted: compiling one function is faster than compiling each operation.
"""

import jax
import jax.numpy as jnp
import numpy as np
from flax import linen as nn

from transformer_jax.mixers.base import MixerContext
from transformer_jax.mixers.registry import MIXERS
from transformer_jax.ops import block_sparse_attention, sparse_attention
from transformer_jax.positions.base import Position, PositionConfig

D, HEADS, BATCH, LENGTH = 8, 2, 2, 37


class BothHooks(Position):
    """Turns queries and keys, and learns a bias that depends on more than the distance."""

    def setup(self):
        shape = (self.context.num_heads, 2 * self.context.max_length)
        self.table = self.param("table", nn.initializers.normal(1.0), shape)

    def rotate(self, q, k, q_positions, k_positions):
        return self._turn(q, q_positions), self._turn(k, k_positions)

    def _turn(self, x, positions):
        a, b = jnp.split(x, 2, axis=-1)
        angle = 0.3 * positions[None, :, None, None]
        sin, cos = jnp.sin(angle), jnp.cos(angle)
        return jnp.concatenate([a * cos - b * sin, a * sin + b * cos], axis=-1)

    def bias(self, q_positions, k_positions):
        distance = k_positions[None, :] - q_positions[:, None]
        return (
            self.table[:, distance + self.context.max_length] * jnp.cos(q_positions)[None, :, None]
        )


def build(name, *, causal, length=LENGTH, dtype="float32", **options):
    context = MixerContext(
        d_model=D,
        num_heads=HEADS,
        head_dim=D // HEADS,
        max_length=length,
        causal=causal,
        dtype=dtype,
        matmul_dtype=dtype,
    )
    return MIXERS[name](**options).build(context, BothHooks(PositionConfig(), context))


def inputs(length=LENGTH, seed=0):
    return jax.random.normal(jax.random.key(seed), (BATCH, length, D))


def initialised(mixer, length=LENGTH):
    mask = jnp.ones((BATCH, length), bool)
    init = jax.jit(lambda key, x: nn.unbox(mixer.init(key, x, mask)))
    return init(jax.random.key(1), inputs(length))


def outputs(mixer, variables, x, mask=None):
    """The mixer in parallel; by default without padding."""
    mask = jnp.ones(x.shape[:2], bool) if mask is None else mask
    return jax.jit(lambda v, x: mixer.apply(v, x, mask))(variables, x)


def influence(mixer, variables, length=LENGTH):
    """[L, L] boolean: whether token t's output depends on token s."""
    mask = jnp.ones((1, length), bool)
    total = lambda x: mixer.apply(variables, x, mask)[0].sum(-1)  # noqa: E731
    return np.abs(jax.jit(jax.jacrev(total))(inputs(length)[:1])[:, 0]).sum(-1) > 0


def unrolled(mixer, variables, x):
    """`step`, token by token: [B, L, D], and the last state."""
    batch, length, _ = x.shape
    step = jax.jit(lambda x, state, at: mixer.apply(variables, x, state, at, method="step"))
    state = mixer.apply(variables, batch, length, method="init_state")
    ys = []
    for t in range(length):
        y, state = step(x[:, t], state, jnp.int32(t))
        ys.append(y)
    return jnp.stack(ys, axis=1), state


def assert_step_equals_parallel(mixer, length=LENGTH):
    variables, x = initialised(mixer, length), inputs(length)
    want = outputs(mixer, variables, x)
    got, state = unrolled(mixer, variables, x)
    np.testing.assert_allclose(got, want, atol=2e-5)
    return state


def assert_equals_full_attention(name, *, causal, length=LENGTH, **options):
    """The same parameters give the same outputs as full attention."""
    mixer, full = (
        build(n, causal=causal, length=length, **o) for n, o in [(name, options), ("full", {})]
    )
    variables, x = initialised(mixer, length), inputs(length)
    mask = jnp.arange(length)[None] < jnp.array([length, length - 2])[:, None]
    got, want = (outputs(m, variables, x, mask) for m in (mixer, full))
    real = mask[..., None]
    np.testing.assert_allclose(jnp.where(real, got, 0), jnp.where(real, want, 0), atol=2e-5)


def smaller_blocks(monkeypatch):
    """Gives short sequences many blocks, and the loop over them several steps."""
    monkeypatch.setitem(block_sparse_attention._STEP_SCORES, "cpu", 500)
    monkeypatch.setattr(sparse_attention, "_SHORTEST_BLOCK", 3)
