"""Diagonal plus low rank systems against dense matrices in float64, and HiPPO-LegS.

A kernel is compared on the scale of its largest entry.
"""

from functools import cache, partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tests.ops.test_scans import normal
from tests.reference import naive_recurrences as naive
from transformer_jax.layers.initializers import hippo_legs
from transformer_jax.ops.diagonal_ssm import empty_state
from transformer_jax.ops.dplr_ssm import dplr_kernels, dplr_step, scaled_system

STEPS = (0.001, 0.01, 0.1)
D = len(STEPS)


def normal_part(states):
    """A + P P^T of HiPPO-LegS as the paper writes it, and P."""
    n = np.arange(states)
    root, p = np.sqrt(2 * n + 1.0), np.sqrt(n + 0.5)
    a = -np.tril(np.outer(root, root), -1) - np.diag(n + 1.0)
    return a + np.outer(p, p), p


def parameters(states, noise):
    """Of HiPPO-LegS plus noise, as `scaled_system` takes them; two outputs."""
    frequency, p = hippo_legs(states)
    low_rank = np.stack([p, 0 * p], axis=-1) + noise * normal(2, D, states // 2, 2)
    input_map = np.stack([2**0.5 * p, 0 * p], axis=-1) + noise * normal(3, D, states // 2, 2)
    values = (
        np.log(STEPS),
        np.log(0.5) + noise * normal(0, D, states // 2),
        frequency + noise * normal(1, D, states // 2),
        low_rank,
        input_map,
        normal(4, 2, D, states // 2, 2),
    )
    return [jnp.asarray(x, jnp.float32) for x in values]


def both_of_each_pair(x):
    """Complex half [..., N/2] -> [..., N]; with reals [..., N/2, 2] as well."""
    half = x if np.iscomplexobj(x) else x[..., 0] + 1j * x[..., 1]
    return np.concatenate([half, half.conj()], axis=-1)


@cache
def dense_kernels(states, noise, length):
    """[2, L, D] in float64 from the same parameters."""
    log_dt, log_decay, frequency, *maps = (
        np.asarray(x, np.float64) for x in parameters(states, noise)
    )
    pole = both_of_each_pair(-np.exp(log_decay) + 1j * frequency)
    p, b, c = (both_of_each_pair(x) for x in maps)
    out = [
        naive.bilinear_impulse(
            np.diag(pole[d]) - np.outer(p[d], p[d].conj()), b[d], c[r, d], np.exp(log_dt[d]), length
        ).real
        for r in range(2)
        for d in range(D)
    ]
    return np.array(out).reshape(2, D, length).swapaxes(1, 2)


@partial(jax.jit, static_argnums=1)
def by_steps(parameters, length):
    """The kernel of the first output, as the answer to one unit input."""
    system, shape = scaled_system(parameters), parameters[1].shape
    inputs = jnp.zeros((length, shape[0])).at[0].set(1.0)
    step = lambda state, u: dplr_step(system, u, state)[::-1]  # noqa: E731
    return jax.lax.scan(step, empty_state(shape), inputs)[1]


@partial(jax.jit, static_argnums=(1, 2))
def kernels(parameters, length, direct_length=64):
    return dplr_kernels(scaled_system(parameters), length, direct_length=direct_length)


def assert_close(got, want, relative):
    scale = np.abs(want).max(axis=-2, keepdims=True)
    np.testing.assert_allclose(got / scale, want / scale, rtol=0, atol=relative)


@pytest.mark.parametrize("states", [2, 6, 64])
def test_hippo_legs_is_the_matrix_of_the_paper(states):
    frequency, low_rank = hippo_legs(states)
    dense, p = normal_part(states)
    eigenvalues = np.linalg.eigvals(dense)
    upper = sorted(eigenvalues[eigenvalues.imag > 0], key=np.imag)
    np.testing.assert_allclose(np.real(upper), -0.5, atol=1e-9)
    np.testing.assert_allclose(frequency, np.imag(upper), rtol=1e-9)
    # V* P in the basis of the eigenvectors, whose phases are free: P* (s - A)^-1 P is not.
    for s in (0.3, 2.0 + 5.0j, 40.0j):
        want = p @ np.linalg.inv(s * np.eye(states) - dense) @ p
        pairs = np.concatenate([1j * frequency, -1j * frequency]) - 0.5
        np.testing.assert_allclose((np.tile(low_rank, 2) ** 2 / (s - pairs)).sum(), want)


@pytest.mark.parametrize("direct_length", [0, 64], ids=["fft", "definition"])
@pytest.mark.parametrize("length", [1, 7, 64, 65, 1200])
@pytest.mark.parametrize("noise", [0.0, 0.5])
def test_kernel_and_steps_equal_the_dense_system(noise, length, direct_length):
    moved = parameters(64, noise)
    want = dense_kernels(64, noise, length)
    assert_close(np.array(kernels(moved, length, direct_length)), want, 2e-5)
    assert_close(by_steps(moved, length), want[0], 2e-5)


def test_a_pole_that_is_gone_after_one_step():
    """The ratio of a step is (1 + pole) / (1 - pole) = 0, which has no logarithm."""
    one, zero = jnp.ones((1, 1)), jnp.zeros((1, 1))
    low_rank = jnp.stack([0.3 * one, zero], axis=-1)
    gone = (jnp.log(2.0 * one[0]), zero, zero, low_rank, low_rank, low_rank[None])
    got, want = kernels(gone, 5)[0], by_steps(gone, 5)
    np.testing.assert_allclose(got, want, atol=2e-4)
