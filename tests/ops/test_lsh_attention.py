"""What is sorted and hashed for LSH attention; tests/mixers/test_reformer.py has its formula."""

import jax
import jax.numpy as jnp
import numpy as np

from transformer_jax.ops.lsh_attention import hash_buckets, hash_rotations, lsh_attention, unit_keys

B, L, H, K, ROUNDS = 2, 13, 2, 4, 2


def test_causal_blocks_do_not_move_with_what_comes_later():
    # The future's buckets sort before, between and after those of the past.
    q, v = jax.random.normal(jax.random.key(0), (2, B, L, H, K))
    buckets = np.asarray(hash_buckets(q, hash_rotations((4,), ROUNDS, K, 0), (4,)))
    everything = np.ones((B, L), bool)
    qkv = q, unit_keys(q), v

    def attend(buckets):
        return lsh_attention(qkv, buckets, everything, 3, lambda weights: weights, causal=True)

    run = jax.jit(attend)
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
