"""State space models of a diagonal plus low rank (DPLR) matrix (S4: Gu et al. 2021,
arXiv:2111.00396; in the stable form of Goel et al. 2022, arXiv:2202.09729).

    x'(t) = A x(t) + B u(t),    y(t) = 2 Re(C x(t)),    A = Lambda - P P*

with Lambda = diag(A_1 ... A_N) complex, Re A_n < 0, P of rank 1, and one of each conjugate pair
kept, so that P* x = 2 Re sum_n conj(P_n) x_n. The bilinear method with steps of size dt gives

    m_t = (I - dt/2 A)^-1 (h_{t-1} + dt/2 B u_t)
    h_t = h_{t-1} + 2 (m_t - h_{t-1}),    y_t = 2 Re(C h_t)

which is h_t = (I - dt/2 A)^-1 ((I + dt/2 A) h_{t-1} + dt B u_t). The inverse is that of a
diagonal matrix and a correction of rank 1 (Woodbury), so a step is O(N) a channel.

The kernel's generating function is K(z) = C ((1 - z) I - (1 + z) dt/2 A)^-1 dt B. With
k_XY(z) = X ((1 - z) I - (1 + z) dt/2 Lambda)^-1 Y, which are kernels of diagonal systems,
Woodbury makes it

    K = dt (k_CB - k_CP (1 + z) k_PB / (2/dt + (1 + z) k_PP))

The paper evaluates this at the L-th roots of unity, which gives a kernel that wraps around
after L steps, and so needs the L-th power of the discrete A. Here all are power series cut after
z^(L-1): their products are causal convolutions, O(L log L) by FFT, and an entry of the kernel
does not depend on L. All in float32.
"""

from collections.abc import Callable, Sequence
from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import Array

from transformer_jax.ops.convolutions import long_convolution
from transformer_jax.ops.diagonal_ssm import ComplexState, DiagonalSSM, ssm_kernel

#: Multiplies a sequence by a fixed one.
Product = Callable[[Array], Array]


class DPLR(NamedTuple):
    """One system per channel, in units of half a step; all complex64.

    Attributes:
        pole: dt/2 Lambda [D, N].
        low_rank: sqrt(dt/2) P [D, N].
        input_map: dt/2 B [D, N].
        output_maps: C of each output [R, D, N].
    """

    pole: Array
    low_rank: Array
    input_map: Array
    output_maps: Array


def scaled_system(parameters: Sequence[Array]) -> DPLR:
    """The system of Lambda = -exp(log_decay) + i frequency, P, B and C.

    Args:
        parameters: the logarithm of each channel's step size [D]; the logarithm of -Re Lambda
            [D, N], stable for any value; Im Lambda [D, N]; real and imaginary part of P and of B
            [D, N, 2], and of C for each output [R, D, N, 2].
    """
    log_dt_D, log_decay_DN, frequency_DN, low_rank_DN2, input_map_DN2, c_RDN2 = parameters
    half_D1 = 0.5 * jnp.exp(log_dt_D)[:, None]
    return DPLR(
        pole=half_D1 * jax.lax.complex(-jnp.exp(log_decay_DN), frequency_DN),
        low_rank=jnp.sqrt(half_D1) * _complex(low_rank_DN2),
        input_map=half_D1 * _complex(input_map_DN2),
        output_maps=_complex(c_RDN2),
    )


def dplr_kernels(ssm: DPLR, length: int, *, direct_length: int) -> list[Array]:
    """The kernel [L, D] of each output, l = 0 ... L - 1.

    Args:
        length: L.
        direct_length: as in `long_convolution`.
    """
    resolvent_DN = 1.0 / (1.0 - ssm.pole)
    # (1 - z) - (1 + z) pole = (1 - pole)(1 - ratio z) with ratio = (1 + pole) / (1 - pole).
    shrinking_DN = 4.0 * ssm.pole.real * jnp.abs(resolvent_DN) ** 2  # |ratio|^2 - 1
    # A ratio of 0 has no logarithm.
    rate_DN = 0.5 * jnp.log1p(jnp.maximum(shrinking_DN, jnp.finfo(jnp.float32).epsneg - 1.0))
    angle_DN = jnp.arctan2(2.0 * ssm.pole.imag, 1.0 - jnp.abs(ssm.pole) ** 2)

    def diagonal_kernel(left_DN: Array, right_DN: Array) -> Array:
        weight_DN = left_DN * resolvent_DN * right_DN
        return ssm_kernel(DiagonalSSM(rate_DN, angle_DN, weight_DN.real, weight_DN.imag), length)

    row_DN = ssm.low_rank.conj()
    feedback_LD = _times_one_plus_z(diagonal_kernel(row_DN, ssm.low_rank))
    entering_LD = _times_one_plus_z(diagonal_kernel(row_DN, ssm.input_map))
    fed_back_LD = _quotient(entering_LD, feedback_LD.at[0].add(1.0), direct_length)

    def kernel(c_DN: Array) -> Array:
        fed_back = _times(diagonal_kernel(c_DN, ssm.low_rank), fed_back_LD, direct_length)
        return 2.0 * (diagonal_kernel(c_DN, ssm.input_map) - fed_back)

    return [kernel(c_DN) for c_DN in ssm.output_maps]


def dplr_step(ssm: DPLR, u: Array, state: ComplexState) -> tuple[Array, ComplexState]:
    """One step: inputs [..., D] -> (the first output y [..., D] float32, the next state)."""
    resolvent_DN = 1.0 / (1.0 - ssm.pole)
    gain_D = 1.0 + 2.0 * (jnp.abs(ssm.low_rank) ** 2 * resolvent_DN.real).sum(axis=-1)
    row_DN = ssm.low_rank.conj() * resolvent_DN / gain_D[:, None]
    pole, low_rank, resolvent, row, b, c = (
        jax.lax.broadcast_to_rank(x, u.ndim + 1)
        for x in (ssm.pole, ssm.low_rank, resolvent_DN, row_DN, ssm.input_map, ssm.output_maps[0])
    )
    before, entering = jax.lax.complex(*state), b * u.astype(jnp.float32)[..., None]
    fed_back = 2.0 * (row * (before + entering)).real.sum(axis=-1, keepdims=True)
    # m - h, without the difference of two close numbers: errors would add up over slow steps.
    change = resolvent * (pole * before + entering - low_rank * fed_back)
    after = before + 2.0 * change
    y = 2.0 * (c * after).real.sum(axis=-1)
    return y, ComplexState(after.real, after.imag)


def _complex(x: Array) -> Array:
    return jax.lax.complex(x[..., 0], x[..., 1])


def _times_one_plus_z(a_LD: Array) -> Array:
    return a_LD + jnp.pad(a_LD, ((1, 0), (0, 0)))[:-1]


def _times(a_LD: Array, b: Array, direct_length: int) -> Array:
    """The product of two power series, to as many terms as `a` has; b is [any length, D]."""
    return long_convolution(a_LD[None], b, direct_length=direct_length)[0]


def _quotient(a_LD: Array, b_LD: Array, direct_length: int) -> Array:
    """a / b for power series with b[0] not zero."""
    times = partial(_times, direct_length=direct_length)
    reciprocal = _reciprocal(jax.lax.stop_gradient(b_LD), direct_length)

    def solve(matvec: Product, a_LD: Array) -> Array:
        first = times(reciprocal, a_LD)
        # One step of refinement takes away the rounding of the reciprocal.
        return first + times(reciprocal, a_LD - matvec(first))

    def transpose_solve(vecmat: Product, a_LD: Array) -> Array:
        # The transpose of a causal convolution is the same one on reversed sequences.
        return solve(lambda x: vecmat(x[::-1])[::-1], a_LD[::-1])[::-1]

    # Its gradient solves one more system, in place of a pass back through the reciprocal.
    return jax.lax.custom_linear_solve(partial(times, b_LD), a_LD, solve, transpose_solve)


def _reciprocal(b_LD: Array, direct_length: int) -> Array:
    """1 / b: the first terms one by one, then Newton's iteration, which doubles their number."""
    first = min(max(direct_length, 1), b_LD.shape[0])
    behind = jnp.pad(b_LD[1:first], ((0, 1), (0, 0)))

    def add_term(latest: Array, _: None) -> tuple[Array, None]:
        term_D = -(behind * latest).sum(axis=0) / b_LD[0]
        return jnp.concatenate([term_D[None], latest[:-1]]), None

    start = jnp.zeros_like(behind).at[0].set(1.0 / b_LD[0])
    latest, _ = jax.lax.scan(add_term, start, length=first - 1)
    result = latest[::-1]
    while result.shape[0] < b_LD.shape[0]:
        known, total = result.shape[0], min(2 * result.shape[0], b_LD.shape[0])
        padded = jnp.pad(result, ((0, total - known), (0, 0)))
        wrong = _times(padded, b_LD[:total], direct_length)[known:]
        more = -_times(wrong, result, direct_length)
        result = jnp.concatenate([result, more])
    return result
