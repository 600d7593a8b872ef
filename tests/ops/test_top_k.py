"""The selection in two stages is `jax.lax.top_k`, ties included."""

import jax
import numpy as np
import pytest

from transformer_jax.ops.top_k import first_argmax, top_k


def drawn(length):
    """Rows whose numbers are continuous, few, mostly -inf, and all equal: [4, 3, length]."""
    random = np.random.default_rng(length)
    size = (3, length)
    rows = (
        random.standard_normal(size),
        random.integers(0, 5, size),
        np.where(random.random(size) < 5 / length, 1.0, -np.inf),
        np.zeros(size),
    )
    return np.stack(rows).astype(np.float32)


@pytest.mark.parametrize("k", [1, 4, 12])
@pytest.mark.parametrize("length", [37, 511, 512, 5000, 5001, 40_000])
def test_equals_lax_top_k(length, k):
    x = drawn(length)
    got, want = jax.jit(top_k, static_argnums=1)(x, k), jax.lax.top_k(x, k)
    for one, other in zip(got, want, strict=True):
        np.testing.assert_array_equal(one, other)


@pytest.mark.parametrize("width", [37, 1000, 5001])
@pytest.mark.parametrize("k", [2, 10])
def test_two_axes_are_selected_from_as_one(width, k):
    x = np.random.default_rng(width).standard_normal((2, 5, width)).astype(np.float32)
    x[0, 1:] = -np.inf
    x[0, 0, 1:] = -np.inf  # fewer than k elements are above -inf
    got = jax.jit(top_k, static_argnums=(1, 2))(x, k, 2)
    for one, other in zip(got, jax.lax.top_k(x.reshape(2, -1), k), strict=True):
        np.testing.assert_array_equal(one, other)


@pytest.mark.parametrize("length", [1, 15, 37, 512, 5001, 32_002])
def test_the_first_of_the_largest(length):
    rising = np.linspace(-2, -1, length, dtype=np.float32)  # the last is the largest, below 0
    for x in (drawn(length), rising):
        np.testing.assert_array_equal(jax.jit(first_argmax)(x), x.argmax(-1))
