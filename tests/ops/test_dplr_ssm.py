"""Diagonal plus low rank systems against dense matrices in float64; convolutions.

A kernel is compared on the scale of its largest entry.
"""

from functools import cache, partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import linen as nn

from tests.ops.test_scans import normal
from tests.reference import naive_recurrences as naive
from transformer_jax.layers.diagonal_systems import DiagonalOptions, DiagonalSystems
from transformer_jax.layers.initializers import hippo_legs
from transformer_jax.ops import convolutions, sequences
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


def upper_eigenvalues(states):
    """Of this matrix; the upper one of each pair."""
    eigenvalues = np.linalg.eigvals(normal_part(states)[0])
    return sorted(eigenvalues[eigenvalues.imag > 0], key=np.imag)


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
    upper = upper_eigenvalues(states)
    np.testing.assert_allclose(np.real(upper), -0.5, atol=1e-9)
    np.testing.assert_allclose(frequency, np.imag(upper), rtol=1e-9)
    # V* P in the basis of the eigenvectors, whose phases are free: P* (s - A)^-1 P is not.
    for s in (0.3, 2.0 + 5.0j, 40.0j):
        want = p @ np.linalg.inv(s * np.eye(states) - dense) @ p
        pairs = np.concatenate([1j * frequency, -1j * frequency]) - 0.5
        np.testing.assert_allclose((np.tile(low_rank, 2) ** 2 / (s - pairs)).sum(), want)


EIGENVALUES = {
    "lin": [-0.5 + 1j * np.pi * n for n in range(4)],
    "inv": [-0.5 + 1j * 8 / np.pi * (8 / (2 * n + 1) - 1) for n in range(4)],
    "legs": upper_eigenvalues(8),
}


@pytest.mark.parametrize("init", EIGENVALUES)
def test_every_channel_of_s4d_starts_with_these_eigenvalues(init):
    """Those of Gu et al. 2022, arXiv:2206.11893."""
    options = DiagonalOptions(state_size=8, init=init)
    systems = DiagonalSystems(3, options, 1, "embed", "float32")
    p = nn.unbox(systems.init(jax.random.key(0), 1, method="kernels"))["params"]
    got = -np.exp(p["log_decay"]) + 1j * np.asarray(p["frequency"])
    np.testing.assert_allclose(got, np.tile(EIGENVALUES[init], (3, 1)), rtol=1e-5)


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


long_convolution = jax.jit(convolutions.long_convolution, static_argnames="direct_length")
reverse_prefix = jax.jit(sequences.reverse_prefix)


def by_numpy(u, kernel, reverse):
    """y_t = sum over s <= t of kernel[t - s] u_s, and over s > t of reverse[s - t - 1] u_s."""
    both, begin = np.concatenate([reverse[::-1], kernel]).T, len(reverse)
    rows = [[np.convolve(x, taps) for x, taps in zip(row.T, both, strict=True)] for row in u]
    return np.swapaxes(rows, 1, 2)[:, begin : begin + u.shape[1]]


@pytest.mark.parametrize("direct_length", [0, 7], ids=["fft", "definition"])
def test_long_convolution_equals_the_sum(direct_length):
    u, kernel, reverse = normal(0, 2, 7, 3), normal(1, 7, 3), normal(2, 7, 3)
    longer = np.concatenate([kernel, normal(3, 5, 3)])
    for used in ((kernel,), (kernel, reverse), (kernel[:3],), (longer,)):
        got = long_convolution(u, *used, direct_length=direct_length)
        want = by_numpy(u, used[0], used[-1] if len(used) > 1 else reverse[:0])
        np.testing.assert_allclose(got, want, atol=1e-5)


def test_a_row_is_reversed_by_its_own_length_and_so_is_its_gradient():
    x = normal(0, 3, 7, 3)
    mask = np.arange(7)[None] < np.array([7, 4, 0])[:, None]
    got = reverse_prefix(x, mask)
    np.testing.assert_array_equal(got[0], x[0, ::-1])
    np.testing.assert_array_equal(got[1], np.concatenate([x[1, 3::-1], x[1, 4:]]))
    np.testing.assert_array_equal(got[2], x[2])
    np.testing.assert_array_equal(reverse_prefix(got, mask), x)
    weights = normal(1, 3, 7, 3)
    gradient = jax.jit(jax.grad(lambda x: (weights * reverse_prefix(x, mask)).sum()))(x)
    np.testing.assert_array_equal(gradient, reverse_prefix(weights, mask))
