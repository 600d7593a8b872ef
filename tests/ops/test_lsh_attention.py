"""Sorted, blocked LSH attention against its sets written out; and the hash."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tests.reference.naive_attention import naive_lsh_attention
from transformer_jax.ops.lsh_attention import (
    hash_buckets,
    hash_rotations,
    lsh_attention,
    unit_keys,
)

B, L, H, K, ROUNDS = 2, 13, 2, 4, 2
MASK = np.arange(L) < np.array([L, 8])[:, None]
FACTORS = (4,)


def arguments(length=L):
    q, v = jax.random.normal(jax.random.key(0), (2, B, L, H, K))[:, :, :length]
    buckets = hash_buckets(q, hash_rotations(FACTORS, ROUNDS, K, 0), FACTORS)
    return q, v, np.asarray(buckets)


def blocked(q, k, v, *others, causal):
    """In the form of the naive one."""
    return lsh_attention((q, k, v), *others, lambda weights: weights, causal=causal)


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("chunk", [3, 50])
def test_outputs_and_gradients_are_those_of_the_sets(causal, chunk):
    q, v, buckets = arguments()
    cotangent = jnp.where(MASK[..., None, None], jax.random.normal(jax.random.key(9), q.shape), 0)

    @jax.jit
    def both(q, v):
        def loss(q, v, function):
            y = function(q, unit_keys(q), v, buckets, MASK, chunk, causal=causal)
            y = jnp.where(MASK[..., None, None], y, 0.0)
            return (y * cotangent).sum(), y

        gradient = jax.grad(loss, (0, 1), has_aux=True)
        return gradient(q, v, blocked), gradient(q, v, naive_lsh_attention)

    (got_grads, got), (want_grads, want) = both(q, v)
    np.testing.assert_allclose(got, want, atol=2e-5)
    for got_grad, want_grad in zip(got_grads, want_grads, strict=True):
        assert np.abs(want_grad).max() > 0
        np.testing.assert_allclose(got_grad, want_grad, atol=1e-4)


def test_causal_blocks_do_not_move_with_what_comes_later():
    # The future's buckets sort before, between and after those of the past.
    q, v, buckets = arguments()
    everything = np.ones((B, L), bool)
    run = jax.jit(lambda buckets: blocked(q, unit_keys(q), v, buckets, everything, 3, causal=True))
    plain = run(buckets)
    for bucket in range(4):
        other = buckets.copy()
        other[:, 7:] = bucket
        np.testing.assert_allclose(run(other)[:, :7], plain[:, :7], atol=1e-6)


def test_the_hash_sees_directions():
    x = jax.random.normal(jax.random.key(3), (200, K))
    for factors in ((8,), (4, 6)):
        rotations = hash_rotations(factors, 3, K, 1)
        assert rotations.shape == (3, K, sum(factors) // 2)
        buckets = np.asarray(hash_buckets(x, rotations, factors))
        assert buckets.shape == (200, 3)
        assert buckets.min() == 0 and buckets.max() == np.prod(factors) - 1
        np.testing.assert_array_equal(hash_buckets(7.0 * x, rotations, factors), buckets)
        assert (np.asarray(hash_buckets(-x, rotations, factors)) != buckets).all()
    near = np.asarray(hash_buckets(x + 0.01, rotations, factors))
    assert (near == buckets).mean() > 0.8
    assert (hash_buckets(x, hash_rotations((), 1, K, 1), ()) == 0).all()


def test_keys_have_length_one():
    x = jax.random.normal(jax.random.key(3), (5, K))
    np.testing.assert_allclose(jnp.linalg.norm(unit_keys(x), axis=-1), 1.0, rtol=1e-4)
    assert np.isfinite(jax.grad(lambda x: unit_keys(x).sum())(jnp.zeros(K))).all()
