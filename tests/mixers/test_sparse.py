"""The sparse mixers of chosen options, under a position scheme that uses both hooks.

Everything is jitted: compiling one function is faster than compiling each operation.
"""

from dataclasses import replace
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import linen as nn

from tests.mixers.formula import Turn, assert_same_with_gradients
from tests.reference.naive_attention import (
    naive_longformer,
    naive_masked_attention,
    naive_window_mask,
)
from transformer_jax.mixers.base import MixerContext
from transformer_jax.mixers.registry import MIXERS
from transformer_jax.ops import block_sparse_attention, sparse_attention
from transformer_jax.ops.key_value_cache import KeyValueCache
from transformer_jax.positions.base import PositionConfig

D, HEADS, BATCH, LENGTH = 8, 2, 2, 37
AT = jnp.arange(LENGTH)
MASK = AT[None] < jnp.array([LENGTH, 20])[:, None]
BLOCKS = {"block_size": 3, "window_blocks": 1, "global_blocks": 1, "random_blocks": 2}


class BothHooks(Turn):
    """Turns queries and keys, and learns a bias that depends on more than the distance."""

    def setup(self):
        shape = (self.context.num_heads, 2 * self.context.max_length)
        self.table = self.param("table", nn.initializers.normal(1.0), shape)

    def bias(self, q_positions, k_positions):
        places = k_positions[None, :] - q_positions[:, None] + self.context.max_length
        return self.table[:, places] * jnp.cos(q_positions)[None, :, None]


@pytest.fixture
def smaller_blocks(monkeypatch):
    """Gives short sequences many blocks, and the loop over them several steps."""
    monkeypatch.setitem(block_sparse_attention._STEP_SCORES, "cpu", 500)
    monkeypatch.setattr(sparse_attention, "_SHORTEST_BLOCK", 3)


def build(name, *, causal, length=LENGTH, dtype="float32", **options):
    context = MixerContext(D, HEADS, D // HEADS, length, causal, dtype=dtype, matmul_dtype=dtype)
    return MIXERS[name](**options).build(context, BothHooks(PositionConfig(), context))


def inputs():
    return jax.random.normal(jax.random.key(0), (BATCH, LENGTH, D))


def initialised(mixer):
    init = jax.jit(lambda key: nn.unbox(mixer.init(key, inputs(), MASK)))
    return init(jax.random.key(1))


def outputs(mixer, variables, x, mask=None):
    """The mixer in parallel; by default without padding."""
    mask = jnp.ones(x.shape[:2], bool) if mask is None else mask
    return jax.jit(mixer.apply)(variables, x, mask)


def unrolled(mixer, variables, x):
    """`step`, token by token: [B, L, D], and the last state."""
    step = jax.jit(partial(mixer.apply, variables, method="step"))
    state = mixer.apply(variables, BATCH, LENGTH, method="init_state")
    ys = []
    for t in range(LENGTH):
        y, state = step(x[:, t], state, jnp.int32(t))
        ys.append(y)
    return jnp.stack(ys, axis=1), state


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("bigbird", BLOCKS),
        *(("strided", {"stride": stride}) for stride in (1, 4, 30, 50)),
        *(("window", {"window": w, "dilation": d}) for w, d in ((4, 1), (3, 3), (50, 1), (1, 90))),
    ],
)
def test_step_equals_parallel(name, options, smaller_blocks):
    mixer, x = build(name, causal=True, **options), inputs()
    variables = initialised(mixer)
    got, state = unrolled(mixer, variables, x)
    np.testing.assert_allclose(got, outputs(mixer, variables, x), atol=2e-5)
    if name == "window":  # its ring forgets what the window no longer sees
        least = min((options["window"] + 1) * options["dilation"], LENGTH)
        assert state.room == KeyValueCache.empty(1, least, 1, 1, jnp.float32).room


def test_a_step_of_strided_reads_few_of_the_cached_keys():
    assert build("strided", causal=True).stride == 7  # the square root of 37, rounded up
    mixer = build("strided", causal=True, stride=8, length=64)
    at, exists = mixer.reads(jnp.int32(50), 64)
    assert sorted(at[exists].tolist()) == [2, 10, 18, 26, 34, *range(42, 51)]


def test_layers_and_seeds_of_bigbird_draw_their_own_plans():
    mixer = build("bigbird", causal=False, **BLOCKS)
    plan = mixer.plan(LENGTH)
    assert (plan == mixer.clone().plan(LENGTH)).all()
    other_layer = mixer.clone(context=replace(mixer.context, layer=1))
    other_seed = mixer.clone(config=replace(mixer.config, seed=1))
    for other in (other_layer, other_seed):
        assert (other.plan(LENGTH) != plan).any()


def projected(bound, heads, x):
    k, v = heads.keys_values(x)
    return (*bound.position.rotate(heads.queries(x), k, AT, AT), v)


@pytest.mark.parametrize("causal", [False, True])
def test_window_is_the_formula_with_its_projections_and_hooks(causal, smaller_blocks):
    mixer = build("window", causal=causal, window=3, dilation=2)
    allowed = naive_window_mask(LENGTH, 3, 2, causal)

    def by_hand(bound, x):
        bias = bound.position.bias(AT, AT)
        qkv = projected(bound, bound.heads, x)
        return bound.heads.join(naive_masked_attention(*qkv, MASK, allowed, bias))

    tolerance = {"rtol": 1e-7, "atol": 2e-4}
    assert_same_with_gradients(mixer, initialised(mixer), by_hand, inputs(), MASK, **tolerance)


@pytest.mark.parametrize("share", [False, True])
def test_longformer_is_the_formula_with_its_projections_and_hooks(share, smaller_blocks):
    options = {"window": 2, "dilation": 2, "num_global": 3, "share_projections": share}
    mixer = build("longformer", causal=False, **options)
    variables = initialised(mixer)
    own = set() if share else {"global_heads"}
    assert set(variables["params"]) == {"heads", "position"} | own

    def by_hand(bound, x):
        local = projected(bound, bound.heads, x)
        q, k, v = local if share else projected(bound, bound.global_heads, x)
        bias = bound.position.bias(AT, AT)
        return bound.heads.join(naive_longformer(local, (q[:, :3], k, v), MASK, 2, 2, bias))

    tolerance = {"rtol": 1e-7, "atol": 2e-4}
    assert_same_with_gradients(mixer, variables, by_hand, inputs(), MASK, **tolerance)


def test_the_weights_that_longformer_shows_are_a_distribution_over_what_is_read():
    mixer = build("longformer", causal=False, window=2, num_global=2)
    apply = jax.jit(partial(mixer.apply, mutable=["intermediates"]))
    _, shown = apply(initialised(mixer), inputs(), jnp.ones((BATCH, LENGTH), bool))
    (weights,) = shown["intermediates"]["attention_weights"]
    np.testing.assert_allclose(weights.sum(-1), 1.0, atol=1e-5)
    assert ((weights > 0).sum(-1)[..., 10] == 2 + 5).all()
    assert ((weights > 0).sum(-1)[..., :2] == LENGTH).all()
