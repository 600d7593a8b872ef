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
