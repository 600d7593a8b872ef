"""Longformer's encoder: global tokens and a window."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tests.mixers.sparse_cases import (
    BATCH,
    LENGTH,
    assert_equals_full_attention,
    build,
    influence,
    initialised,
    inputs,
    outputs,
    smaller_blocks,
)
from tests.reference.naive_longformer import naive_longformer
from transformer_jax.mixers.longformer import Longformer


@pytest.mark.parametrize("share", [False, True])
def test_the_module_is_the_formula_with_its_projections_and_hooks(share, monkeypatch):
    smaller_blocks(monkeypatch)
    mixer = build(
        "longformer", causal=False, window=2, dilation=2, num_global=3, share_projections=share
    )
    variables = initialised(mixer)
    assert set(variables["params"]) == {"heads", "position"} | (
        set() if share else {"global_heads"}
    )
    mask = jnp.arange(LENGTH)[None] < jnp.array([LENGTH, 20])[:, None]
    at = jnp.arange(LENGTH)

    def projected(bound, heads, x):
        k, v = heads.keys_values(x)
        return (*bound.position.rotate(heads.queries(x), k, at, at), v)

    def by_hand(bound, x):
        local = projected(bound, bound.heads, x)
        q, k, v = local if share else projected(bound, bound.global_heads, x)
        bias = bound.position.bias(at, at)
        return bound.heads.join(naive_longformer(local, (q[:, :3], k, v), mask, 2, 2, bias))

    got = outputs(mixer, variables, inputs(), mask)
    want = jax.jit(lambda v, x: by_hand(mixer.bind(v), x))(variables, inputs())
    real = mask[..., None]
    np.testing.assert_allclose(jnp.where(real, got, 0), jnp.where(real, want, 0), atol=2e-5)


def test_global_tokens_connect_the_ends_and_others_do_not():
    mixer = build("longformer", causal=False, window=2, num_global=1)
    sees = influence(mixer, initialised(mixer))
    assert sees[0].all() and sees[:, 0].all()
    assert not sees[LENGTH - 1, 1 : LENGTH - 3].any()


def test_the_limit_is_full_attention():
    assert_equals_full_attention(
        "longformer", causal=False, window=LENGTH, num_global=3, share_projections=True
    )


def test_the_weights_shown_are_a_distribution_over_what_is_read():
    mixer = build("longformer", causal=False, window=2, num_global=2)
    mask = jnp.ones((BATCH, LENGTH), bool)
    apply = jax.jit(partial(mixer.apply, mutable=["intermediates"]))
    _, shown = apply(initialised(mixer), inputs(), mask)
    (weights,) = shown["intermediates"]["attention_weights"]
    np.testing.assert_allclose(weights.sum(-1), 1.0, atol=1e-5)
    assert ((weights > 0).sum(-1)[..., 10] == 2 + 5).all()
    assert ((weights > 0).sum(-1)[..., :2] == LENGTH).all()


def test_the_decoder_is_refused_with_advice():
    assert "use window" in Longformer.refuses["decoder"]
