"""Reformer: its formula and steps with several buckets, and how many it takes."""

import jax.numpy as jnp
import numpy as np
import pytest

from tests.mixers.formula import assert_same_with_gradients, turned
from tests.reference.naive_attention import naive_lsh_attention
from transformer_jax.mixers.reformer import Reformer, bucket_factors
from transformer_jax.ops.lsh_attention import hash_buckets, unit_keys
from transformer_jax.testing import mixers as suite

#: Several buckets and blocks for the suite's seven tokens; the defaults have one.
SMALL = Reformer(chunk=3, rounds=6, buckets=4, seed=1)


@pytest.mark.parametrize("causal", [False, True])
def test_the_module_is_the_formula(causal):
    mixer, variables = turned(SMALL, causal=causal)
    x, mask = suite.inputs(), np.asarray(suite.MASK)
    at = jnp.arange(suite.LENGTH)

    def heads(project, x):
        return project(x).reshape(*x.shape[:2], suite.HEADS, -1)

    bound = mixer.bind(variables)
    buckets = np.asarray(hash_buckets(heads(bound.query_key, x), bound.rotations, bound.factors))
    assert len(np.unique(buckets)) == 4

    def by_hand(bound, x):
        qk, v = heads(bound.query_key, x), heads(bound.value, x)
        q, k = bound.position.rotate(qk, unit_keys(qk), at, at)
        y = naive_lsh_attention(q, k, v, buckets, mask, SMALL.chunk, causal=causal)
        return bound.out(y.reshape(*x.shape[:2], -1))

    assert_same_with_gradients(mixer, variables, by_hand, x, suite.MASK)
    if causal:
        suite.check_step_equals_parallel(mixer, variables)


@pytest.mark.parametrize(
    ("buckets", "chunk", "max_length", "factors"),
    [
        (None, 64, 64, ()),  # all within one block
        (1, 4, 64, ()),
        (None, 64, 65, (2,)),
        (None, 64, 1024, (32,)),
        (None, 64, 16384, (16, 32)),  # 512, hashed at the cost of 48
        (128, 64, 64, (8, 16)),
        (66, 64, 64, (66,)),  # not a power of two
    ],
)
def test_the_number_of_buckets_follows_the_length(buckets, chunk, max_length, factors):
    assert bucket_factors(Reformer(chunk=chunk, buckets=buckets), max_length) == factors
