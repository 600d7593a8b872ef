"""Convolutions and diagonal systems against their definitions."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tests.ops.test_scans import normal
from tests.reference import naive_recurrences as naive
from transformer_jax.ops import convolutions, diagonal_ssm, sequences
from transformer_jax.ops.diagonal_ssm import empty_state

B, L, D = 2, 7, 3

long_convolution = jax.jit(convolutions.long_convolution, static_argnames="direct_length")
short_convolution = jax.jit(convolutions.short_convolution)
short_convolution_step = jax.jit(convolutions.short_convolution_step)
discretize = jax.jit(diagonal_ssm.discretize)
ssm_kernel = jax.jit(diagonal_ssm.ssm_kernel, static_argnums=1)
ssm_step = jax.jit(diagonal_ssm.ssm_step)
reverse_prefix = jax.jit(sequences.reverse_prefix)


@pytest.mark.parametrize("direct_length", [0, L], ids=["fft", "definition"])
def test_long_convolution_equals_the_sum(direct_length):
    u, kernel, reverse = normal(0, B, L, D), normal(1, L, D), normal(2, L, D)
    longer = np.concatenate([kernel, normal(3, 5, D)])
    for kernels in ((kernel,), (kernel, reverse), (kernel[:3],), (longer,)):
        got = long_convolution(u, *kernels, direct_length=direct_length)
        np.testing.assert_allclose(got, naive.convolution(u, *kernels), atol=1e-5)


def test_short_convolution_equals_the_sum_and_its_steps():
    x, kernel = normal(0, B, L, D), normal(1, 4, D)
    got = short_convolution(x, kernel)
    np.testing.assert_allclose(got, naive.convolution(x, kernel[::-1]), atol=1e-5)
    window = jnp.zeros((B, 3, D))
    for t in range(L):
        y, window = short_convolution_step(x[:, t], window, kernel)
        np.testing.assert_allclose(y, got[:, t], atol=1e-5)


def systems():
    log_dt = np.log(np.array([0.01, 0.1, 0.5], np.float32))
    log_decay, frequency, c = 0.3 * normal(0, D, 4), normal(1, D, 4) * 5, normal(2, D, 4, 2)
    return log_dt, log_decay, frequency, c


@pytest.mark.parametrize("length", [1, 2, 37])
def test_kernel_and_step_equal_the_state_space_model(length):
    log_dt, log_decay, frequency, c = systems()
    ssm = discretize(log_dt, log_decay, frequency, c)
    u = normal(3, B, length, D)
    want = naive.diagonal_ssm(
        u, np.exp(log_dt), -np.exp(log_decay) + 1j * frequency, c[..., 0] + 1j * c[..., 1]
    )
    got = long_convolution(u, ssm_kernel(ssm, length), direct_length=0)
    np.testing.assert_allclose(got, want, atol=2e-5)
    state = empty_state((B, D, 4))
    for t in range(min(length, 5)):
        y, state = ssm_step(ssm, u[:, t], state)
        np.testing.assert_allclose(y, want[:, t], atol=2e-5)


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
