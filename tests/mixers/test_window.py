"""Sliding-window attention: its ring, its limits and its hooks."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tests.mixers.formula import assert_same_with_gradients
from tests.mixers.sparse_cases import (
    BATCH,
    LENGTH,
    assert_equals_full_attention,
    assert_step_equals_parallel,
    build,
    initialised,
    inputs,
    outputs,
    smaller_blocks,
)
from tests.reference.naive_masked_attention import naive_masked_attention
from tests.reference.naive_window import naive_window_mask
from transformer_jax.ops.key_value_cache import KeyValueCache


@pytest.mark.parametrize("causal", [False, True])
def test_the_module_is_the_formula_with_its_projections_and_hooks(causal, monkeypatch):
    smaller_blocks(monkeypatch)
    mixer = build("window", causal=causal, window=3, dilation=2)
    variables = initialised(mixer)
    mask = jnp.arange(LENGTH)[None] < jnp.array([LENGTH, 20])[:, None]
    allowed = naive_window_mask(LENGTH, 3, 2, causal)

    def by_hand(bound, x):
        at = jnp.arange(LENGTH)
        k, v = bound.heads.keys_values(x)
        q, k = bound.position.rotate(bound.heads.queries(x), k, at, at)
        y = naive_masked_attention(q, k, v, mask, allowed, bound.position.bias(at, at))
        return bound.heads.join(y)

    assert_same_with_gradients(mixer, variables, by_hand, inputs(), mask, rtol=1e-7, atol=2e-4)


@pytest.mark.parametrize(("window", "dilation"), [(4, 1), (3, 3), (50, 1), (1, 90)])
def test_the_ring_forgets_what_the_window_no_longer_sees(window, dilation):
    state = assert_step_equals_parallel(
        build("window", causal=True, window=window, dilation=dilation)
    )
    least = min((window + 1) * dilation, LENGTH)
    assert state.room == KeyValueCache.empty(1, least, 1, 1, jnp.float32).room


def test_the_ring_is_the_same_for_every_length():
    mixer = build("window", causal=True, window=3, dilation=2)
    sizes = [
        jax.tree.map(jnp.shape, mixer.apply({}, BATCH, length, method="init_state"))
        for length in (LENGTH, 100 * LENGTH)
    ]
    assert sizes[0] == sizes[1]


@pytest.mark.parametrize("causal", [False, True])
def test_a_window_of_the_length_is_full_attention(causal):
    assert_equals_full_attention("window", causal=causal, window=LENGTH - 1)


def test_bfloat16_stays_near_float32():
    low, high = (build("window", causal=True, window=3, dtype=d) for d in ("bfloat16", "float32"))
    variables = initialised(high)
    got = outputs(low, variables, inputs().astype(jnp.bfloat16))
    want = outputs(high, variables, inputs())
    assert got.dtype == jnp.bfloat16
    np.testing.assert_allclose(got.astype(jnp.float32), want, atol=0.05)


def test_dropout_changes_the_output_only_when_it_is_on():
    mixer = build("window", causal=True, window=3, dropout_rate=0.5)
    variables, mask = initialised(mixer), jnp.ones((BATCH, LENGTH), bool)

    @partial(jax.jit, static_argnums=0)
    def run(is_on, seed):
        rngs = {"dropout": jax.random.key(seed)} if is_on else {}
        return mixer.apply(variables, inputs(), mask, rngs=rngs)

    assert (run(False, 0) == run(False, 1)).all()
    assert (run(True, 0) != run(True, 1)).any() and (run(True, 0) != run(False, 0)).any()
