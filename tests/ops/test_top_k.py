"""The selection in two stages is `jax.lax.top_k`, ties included."""

import jax
import numpy as np
import pytest

from transformer_jax.ops.top_k import top_k


@pytest.mark.parametrize("length", [37, 511, 512, 5000, 5001, 40_000])
@pytest.mark.parametrize("k", [1, 4, 12])
@pytest.mark.parametrize("values", ["continuous", "few", "mostly -inf", "equal"])
def test_equals_lax_top_k(length, k, values):
    random = np.random.default_rng(length)
    x = {
        "continuous": random.standard_normal((2, 3, length)),
        "few": random.integers(0, 5, (2, 3, length)),
        "mostly -inf": np.where(random.random((2, 3, length)) < 5 / length, 1.0, -np.inf),
        "equal": np.zeros((2, 3, length)),
    }[values].astype(np.float32)
    got, want = jax.jit(top_k, static_argnums=1)(x, k), jax.lax.top_k(x, k)
    for one, other in zip(got, want, strict=True):
        np.testing.assert_array_equal(one, other)


@pytest.mark.parametrize("width", [37, 500, 1000, 5001])
@pytest.mark.parametrize("k", [2, 10])
def test_two_axes_are_selected_from_as_one(width, k):
    x = np.random.default_rng(width).standard_normal((2, 5, width)).astype(np.float32)
    x[0, 1:] = -np.inf
    x[0, 0, 1:] = -np.inf  # fewer than k elements are above -inf
    got = jax.jit(top_k, static_argnums=(1, 2))(x, k, 2)
    for one, other in zip(got, jax.lax.top_k(x.reshape(2, -1), k), strict=True):
        np.testing.assert_array_equal(one, other)
