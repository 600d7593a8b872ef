"""Diagonal state space models (S4D: Gu et al. 2022, arXiv:2206.11893).

    x'(t) = A x(t) + B u(t),    y(t) = 2 Re(C x(t))

with A = diag(A_1 ... A_N) complex, Re A_n < 0, and one of each conjugate pair kept.
With the input held constant over steps of size dt (zero-order hold) it is the recurrence

    h_t = e^(dt A) h_{t-1} + u_t,    y_t = 2 Re sum_n W_n h_t,n
    W = C B (e^(dt A) - 1) / A

or a convolution with kernel[l] = 2 Re sum_n W_n e^(dt A_n l). All in float32; complex numbers
are pairs of real ones, which every backend multiplies as matrices.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import Array


class DiagonalSSM(NamedTuple):
    """One discrete system per channel; all [D, N] float32.

    Attributes:
        rate: Re(dt A) < 0.
        angle: Im(dt A).
        weight_real: Re W.
        weight_imag: Im W.
    """

    rate: Array
    angle: Array
    weight_real: Array
    weight_imag: Array


class ComplexState(NamedTuple):
    """Real and imaginary part of the systems' state, [..., D, N] float32 each."""

    real: Array
    imag: Array


def empty_state(shape: tuple[int, ...]) -> ComplexState:
    """The state before the first input."""
    return ComplexState(real=jnp.zeros(shape, jnp.float32), imag=jnp.zeros(shape, jnp.float32))


def discretize(
    log_dt_D: Array, log_decay_DN: Array, frequency_DN: Array, c_DN2: Array
) -> DiagonalSSM:
    """The discrete system of A = -exp(log_decay) + i frequency, B = 1 and C.

    Args:
        log_dt_D: logarithm of each channel's step size.
        log_decay_DN: logarithm of -Re A; the system is stable for any value.
        frequency_DN: Im A.
        c_DN2: real and imaginary part of C.
    """
    a_DN = jax.lax.complex(-jnp.exp(log_decay_DN), frequency_DN)
    step_DN = a_DN * jnp.exp(log_dt_D)[:, None]
    weight_DN = jax.lax.complex(c_DN2[..., 0], c_DN2[..., 1]) * jnp.expm1(step_DN) / a_DN
    return DiagonalSSM(step_DN.real, step_DN.imag, weight_DN.real, weight_DN.imag)


def ssm_kernel(ssm: DiagonalSSM, length: int) -> Array:
    """kernel [L, D] for l = 0 ... L - 1.

    With l = i J + j and J about sqrt(L), e^(dt A l) is a factor for i times a factor for j.
    So the sum over N is a matrix product [I, N] x [N, J] for each channel, in
    O(D N sqrt(L)) memory instead of O(D N L).
    """
    ssm = DiagonalSSM(*(x[None] for x in ssm))
    block = max(1, round(length**0.5))
    coarse = jnp.arange(0, length, block, dtype=jnp.float32)[:, None, None]
    fine = jnp.arange(block, dtype=jnp.float32)[:, None, None]
    cos_IDN, sin_IDN = _powers(ssm, coarse)
    left_real = ssm.weight_real * cos_IDN - ssm.weight_imag * sin_IDN
    left_imag = ssm.weight_real * sin_IDN + ssm.weight_imag * cos_IDN
    cos_JDN, sin_JDN = _powers(ssm, fine)
    kernel_IJD = jnp.einsum("idn,jdn->ijd", left_real, cos_JDN)
    kernel_IJD -= jnp.einsum("idn,jdn->ijd", left_imag, sin_JDN)
    return 2.0 * kernel_IJD.reshape(-1, kernel_IJD.shape[-1])[:length]


def _powers(ssm: DiagonalSSM, steps: Array) -> tuple[Array, Array]:
    """Real and imaginary part of e^(dt A steps); steps are whole numbers."""
    # Rounding angle * steps would change the phase by 1e-7 of all turns so far. The turns are
    # split instead: `coarse * steps` is exact for some ten thousand steps, and `fine` is small.
    turns = ssm.angle / (2.0 * jnp.pi)
    coarse = jnp.round(512.0 * turns) / 512.0
    fine = turns - coarse
    whole = coarse * steps
    phase = (2.0 * jnp.pi) * (whole - jnp.round(whole) + fine * steps)
    size = jnp.exp(ssm.rate * steps)
    return size * jnp.cos(phase), size * jnp.sin(phase)


def ssm_step(ssm: DiagonalSSM, u: Array, state: ComplexState) -> tuple[Array, ComplexState]:
    """One step of the recurrence: inputs [..., D] -> (y [..., D] float32, the next state)."""
    ssm = DiagonalSSM(*(jax.lax.broadcast_to_rank(x, u.ndim + 1) for x in ssm))
    cos, sin = _powers(ssm, jnp.ones((), jnp.float32))
    real = cos * state.real - sin * state.imag + u.astype(jnp.float32)[..., None]
    imag = sin * state.real + cos * state.imag
    y = 2.0 * (ssm.weight_real * real - ssm.weight_imag * imag).sum(axis=-1)
    return y, ComplexState(real, imag)
