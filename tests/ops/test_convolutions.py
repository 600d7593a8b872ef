"""Long convolutions against their definition, and rows in reverse."""

import jax
import numpy as np
import pytest

from tests.ops.test_scans import normal
from tests.reference import naive_recurrences as naive
from transformer_jax.ops import convolutions, sequences

B, L, D = 2, 7, 3

long_convolution = jax.jit(convolutions.long_convolution, static_argnames="direct_length")
reverse_prefix = jax.jit(sequences.reverse_prefix)


@pytest.mark.parametrize("direct_length", [0, L], ids=["fft", "definition"])
def test_long_convolution_equals_the_sum(direct_length):
    u, kernel, reverse = normal(0, B, L, D), normal(1, L, D), normal(2, L, D)
    longer = np.concatenate([kernel, normal(3, 5, D)])
    for kernels in ((kernel,), (kernel, reverse), (kernel[:3],), (longer,)):
        got = long_convolution(u, *kernels, direct_length=direct_length)
        np.testing.assert_allclose(got, naive.convolution(u, *kernels), atol=1e-5)


def test_a_row_is_reversed_by_its_own_length_and_so_is_its_gradient():
    x = normal(0, 3, L, D)
    mask = np.arange(L)[None] < np.array([L, 4, 0])[:, None]
    got = reverse_prefix(x, mask)
    np.testing.assert_array_equal(got[0], x[0, ::-1])
    np.testing.assert_array_equal(got[1], np.concatenate([x[1, 3::-1], x[1, 4:]]))
    np.testing.assert_array_equal(got[2], x[2])
    np.testing.assert_array_equal(reverse_prefix(got, mask), x)
    weights = normal(1, 3, L, D)
    gradient = jax.jit(jax.grad(lambda x: (weights * reverse_prefix(x, mask)).sum()))(x)
    np.testing.assert_array_equal(gradient, reverse_prefix(weights, mask))
