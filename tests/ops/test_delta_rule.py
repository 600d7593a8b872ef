"""The delta rule in chunks against the loop, also where its systems are worst."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tests.ops.test_scans import assert_same, normal
from tests.reference.naive_recurrences import delta_rule
from transformer_jax.ops.delta_rule import delta_rule_scan, unit_lower_inverse

B, L, H, K, V = 2, 11, 2, 3, 5


def arguments(length=L, decay=(K,)):
    return (
        normal(0, B, length, H, K),
        normal(1, B, length, H, K) / 2,
        normal(2, B, length, H, V),
        normal(3, B, length, H, K) / 2,
        -np.exp(normal(4, B, length, H, *decay)),
    )


@pytest.mark.parametrize("decay", [(), (K,)], ids=["head", "channel"])
@pytest.mark.parametrize("chunk", [1, 4, 16])
def test_equals_the_loop(chunk, decay):
    assert_same(lambda *a: delta_rule_scan(a, chunk), delta_rule, arguments(decay=decay))


@pytest.mark.parametrize("log_decay", [0.0, -1e-3, -80.0])
def test_one_key_again_and_again_at_full_strength(log_decay):
    """Every token replaces what the last one wrote; powers of A would overflow."""
    length = 128
    q, _, v, _, w = arguments(length, decay=())
    k = np.zeros((B, length, H, K), np.float32)
    k[..., 0] = 1.0

    def read(q, k, v, w):
        return delta_rule_scan((q, k, v, k, w), 64)

    w = np.full_like(w, log_decay)
    y, last = jax.jit(read)(q, k, v, w)
    np.testing.assert_allclose(y, q[..., :1] * v, atol=1e-5)
    np.testing.assert_allclose(last[:, :, 0], v[:, -1], atol=1e-5)
    grads = jax.jit(jax.grad(lambda *a: (read(*a)[0] ** 2).sum(), (0, 1, 2, 3)))(q, k, v, w)
    assert all(np.isfinite(grad).all() for grad in grads)
    np.testing.assert_allclose(grads[2], 2 * q[..., :1] ** 2 * v, atol=1e-4)


@pytest.mark.parametrize("size", [1, 2, 4, 16])
def test_the_inverse_is_exact(size):
    below = jnp.tril(normal(0, B, size, size), -1)
    inverse, pull = jax.vjp(unit_lower_inverse, below)
    want = np.linalg.inv(np.eye(size) + np.asarray(below, np.float64))
    np.testing.assert_allclose(inverse, want, rtol=1e-4, atol=1e-5 * np.abs(want).max())
    weights = normal(1, B, size, size)
    want = -np.swapaxes(want, 1, 2) @ weights @ np.swapaxes(want, 1, 2)
    np.testing.assert_allclose(pull(weights)[0], want, rtol=1e-3, atol=1e-5 * np.abs(want).max())
