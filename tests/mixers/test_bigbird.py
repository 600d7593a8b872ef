"""BigBird: the plan is a constant, and a step reads only the blocks in it."""

from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tests.mixers.sparse_cases import (
    BATCH,
    LENGTH,
    assert_equals_full_attention,
    assert_step_equals_parallel,
    build,
    influence,
    initialised,
    inputs,
    outputs,
    smaller_blocks,
    unrolled,
)
from tests.reference.naive_bigbird import naive_bigbird_mask

BLOCKS = {"block_size": 3, "window_blocks": 1, "global_blocks": 1, "random_blocks": 2}


def test_step_equals_parallel(monkeypatch):
    smaller_blocks(monkeypatch)
    assert_step_equals_parallel(build("bigbird", causal=True, **BLOCKS))


@pytest.mark.parametrize("causal", [False, True])
def test_a_token_depends_on_exactly_what_the_plan_allows(causal):
    mixer = build("bigbird", causal=causal, **BLOCKS)
    sees = influence(mixer, initialised(mixer))
    allowed = naive_bigbird_mask(LENGTH, 3, mixer.plan(LENGTH), 1, causal)
    assert (sees == allowed).all() and not allowed[:, 20].all()


def test_a_step_reads_only_the_blocks_of_the_plan():
    """Blocks that are not in the plan may hold anything, even NaN."""
    mixer = build("bigbird", causal=True, **BLOCKS)
    variables, x = initialised(mixer), inputs()
    _, state = unrolled(mixer, variables, x)
    at, exists = mixer.reads(jnp.int32(LENGTH - 1), state.room)
    assert at.size == 3 * (1 + 2 + 2)
    kept = jnp.zeros(state.room, bool).at[jnp.where(exists, at, 0)].set(True)
    poisoned = jax.tree.map(lambda s: jnp.where(kept[:, None, None, None], s, jnp.nan), state)
    assert jnp.isnan(poisoned.key).any()
    want, got = (
        mixer.apply(variables, x[:, -1], s, jnp.int32(LENGTH - 1), method="step")[0]
        for s in (state, poisoned)
    )
    np.testing.assert_array_equal(got, want)


def test_more_padding_changes_nothing(monkeypatch):
    """The draw depends on max_length, so a longer batch does not change a sentence's blocks."""
    smaller_blocks(monkeypatch)
    mixer = build("bigbird", causal=False, length=60, **BLOCKS)
    variables = initialised(mixer, 60)
    mask = jnp.arange(60)[None] < jnp.array([20, 13])[:, None]
    long = outputs(mixer, variables, inputs(60), mask)
    short = outputs(mixer, variables, inputs(60)[:, :20], mask[:, :20])
    real = mask[:, :20, None]
    np.testing.assert_allclose(
        jnp.where(real, long[:, :20], 0), jnp.where(real, short, 0), atol=2e-5
    )


def test_layers_and_seeds_draw_their_own_plans():
    mixer = build("bigbird", causal=False, **BLOCKS)
    plan = mixer.plan(LENGTH)
    assert (plan == mixer.clone().plan(LENGTH)).all()
    other_layer = mixer.clone(context=replace(mixer.context, layer=1))
    other_seed = mixer.clone(config=replace(mixer.config, seed=1))
    for other in (other_layer, other_seed):
        assert (other.plan(LENGTH) != plan).any()


@pytest.mark.parametrize("causal", [False, True])
def test_all_blocks_are_full_attention(causal):
    everything = {"block_size": 4, "window_blocks": LENGTH, "random_blocks": 0}
    assert_equals_full_attention("bigbird", causal=causal, **everything)


def test_all_random_blocks_are_full_attention_too():
    everything = {"block_size": 4, "window_blocks": 0, "global_blocks": 0, "random_blocks": 99}
    assert_equals_full_attention("bigbird", causal=False, **everything)


def test_padding_alone_gives_finite_gradients():
    mixer = build("bigbird", causal=False, **BLOCKS)
    mask = jnp.zeros((BATCH, LENGTH), bool)
    loss = lambda v: mixer.apply(v, inputs(), mask).sum()  # noqa: E731
    grads = jax.jit(jax.grad(loss))(initialised(mixer))
    assert all(np.isfinite(leaf).all() for leaf in jax.tree.leaves(grads))
