"""Products of Bergamot's engine in int8, against NumPy with int16 that saturates."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from transformer_jax.ops.matmul import matmul
from transformer_jax.ops.matrices import reshaped, rows
from transformer_jax.ops.shifted_int8 import shifted, shifted_product


def expected(x_MK, w_KN, alpha, bias_N, *, saturates=True):
    m = np.float32(127) / np.abs(w_KN).max()
    q = np.rint(w_KN * m).astype(np.int64)
    a = np.clip(np.rint(x_MK * np.float32(alpha)), -127, 127).astype(np.int64) + 127
    pairs = a[:, 0::2, None] * q[None, 0::2] + a[:, 1::2, None] * q[None, 1::2]
    if saturates:
        pairs = np.clip(pairs, -(2**15), 2**15 - 1)
    return (pairs.sum(1) - 127 * q.sum(0)) / (float(alpha) * float(m)) + bias_N


@pytest.mark.parametrize("size", [(1, 2, 3), (5, 16, 7), (4, 50, 9), (33, 128, 40), (150, 128, 1000), (600, 128, 128)])
def test_equals_numpy(size):
    m, k, n = size
    rng = np.random.default_rng(k)
    x, w = rng.normal(size=(m, k)).astype("f"), rng.normal(size=(k, n)).astype("f")
    bias = rng.normal(size=n).astype("f")
    got = jax.jit(lambda x, w, b: shifted_product(x, shifted(w, 50.0), 1, b))(x, w, bias)
    np.testing.assert_allclose(got, expected(x, w, 50.0, bias), rtol=1e-4, atol=1e-4)


def test_pairs_saturate():
    """Two products of 254 and 127 are more than int16 holds."""
    x, w = np.float32([[2.0, 2.0, -2.0, -2.0]]), np.float32([[1.0], [1.0], [1.0], [0.5]])
    got = shifted_product(jnp.asarray(x), shifted(jnp.asarray(w), 127.0), 1)
    np.testing.assert_allclose(got, expected(x, w, 127.0, 0.0), rtol=1e-6)
    assert abs(float(got[0, 0]) - expected(x, w, 127.0, 0.0, saturates=False)[0, 0]) > 1.0


def test_layers_take_it_as_a_matrix():
    rng = np.random.default_rng(0)
    x, w = rng.normal(size=(3, 8)).astype("f"), rng.normal(size=(8, 12)).astype("f")
    held, bias = shifted(jnp.asarray(w), 40.0), np.zeros(12, np.float32)
    want = expected(x, w, 40.0, bias)
    got = matmul(jnp.asarray(x), reshaped(held, (8,), (3, 4)), jnp.float32, 1)
    np.testing.assert_allclose(got.reshape(3, 12), want, rtol=1e-4, atol=1e-4)
    joined = matmul(jnp.asarray(x).reshape(3, 2, 4), reshaped(held, (2, 4), (12,)), jnp.float32, 2)
    np.testing.assert_allclose(joined, want, rtol=1e-4, atol=1e-4)
    turned = matmul(jnp.asarray(x), shifted(jnp.asarray(w.T), 40.0).T, jnp.float32)
    np.testing.assert_allclose(turned, want, rtol=1e-4, atol=1e-4)
    found = rows(held, jnp.array([[2, 5]]))
    assert np.abs(found[0] - w[[2, 5]]).max() <= np.abs(w).max() / 127 / 2 + 1e-6


def test_a_matrix_of_zeros():
    y = shifted_product(jnp.ones((2, 4)), shifted(jnp.zeros((4, 3)), 10.0), 1, jnp.arange(3.0))
    np.testing.assert_array_equal(y, [[0.0, 1.0, 2.0]] * 2)
