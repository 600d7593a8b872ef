"""Sparse Transformer's strided attention."""

import jax.numpy as jnp
import pytest

from tests.mixers.sparse_cases import (
    LENGTH,
    assert_equals_full_attention,
    assert_step_equals_parallel,
    build,
    influence,
    initialised,
    smaller_blocks,
)
from tests.reference.naive_strided import naive_strided_mask


@pytest.mark.parametrize("stride", [1, 4, 30, 50])
def test_step_equals_parallel(stride, monkeypatch):
    smaller_blocks(monkeypatch)
    assert_step_equals_parallel(build("strided", causal=True, stride=stride))


@pytest.mark.parametrize("causal", [False, True])
def test_a_token_depends_on_exactly_what_the_pattern_allows(causal):
    mixer = build("strided", causal=causal)
    stride = mixer.stride
    assert stride == 7  # the square root of 37, rounded up
    sees = influence(mixer, initialised(mixer))
    allowed = naive_strided_mask(LENGTH, stride, causal)
    assert (sees == allowed).all()
    two_layers = allowed.astype(int) @ allowed
    assert ((two_layers > 0) | (jnp.triu(jnp.ones_like(allowed), 1) & causal)).all()


@pytest.mark.parametrize("stride", [1, LENGTH])
def test_the_limits_are_full_attention(stride):
    assert_equals_full_attention("strided", causal=True, stride=stride)


def test_a_step_reads_few_of_the_cached_keys():
    mixer = build("strided", causal=True, stride=8, length=64)
    at, exists = mixer.reads(jnp.int32(50), 64)
    assert sorted(at[exists].tolist()) == [2, 10, 18, 26, 34, *range(42, 51)]
