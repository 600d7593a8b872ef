"""Initial values that state space models need; see Gu et al. 2022, arXiv:2206.12037.

The first arguments are a function's own, to be bound by `functools.partial`: what is left is an
`Initializer`.
"""

from collections.abc import Callable
from functools import cache
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import linen as nn
from jax import Array

#: (key, shape, dtype) -> initial values.
Initializer = Callable[..., Array]
Shape = tuple[int, ...]
#: Indices -> a value for each.
Values = Callable[[Array], Array]

#: Uniform within 1 / sqrt(inputs) of zero: what layers of PyTorch draw.
torch_uniform: Initializer = nn.initializers.variance_scaling(1 / 3, "fan_in", "uniform")


def log_uniform(low: float, high: float, key: Array, shape: Shape, dtype: Any) -> Array:
    """Logarithms of values between `low` and `high`, uniform in the logarithm."""
    low_log, high_log = jnp.log(jnp.float32(low)), jnp.log(jnp.float32(high))
    return jax.random.uniform(key, shape, jnp.float32, low_log, high_log).astype(dtype)


def softplus_inverse(low: float, high: float, key: Array, shape: Shape, dtype: Any) -> Array:
    """Values with a softplus between `low` and `high`, uniform in the logarithm."""
    wanted = jnp.exp(log_uniform(low, high, key, shape, jnp.float32))
    # x + log(1 - exp(-x)) is the inverse, written so that it is precise for small x.
    return (wanted + jnp.log(-jnp.expm1(-wanted))).astype(dtype)


def log_of_uniform(low: float, high: float, key: Array, shape: Shape, dtype: Any) -> Array:
    """Logarithms of values drawn uniformly between `low` and `high`."""
    return jnp.log(jax.random.uniform(key, shape, jnp.float32, low, high)).astype(dtype)


def along_last_axis(values: Values, key: Array, shape: Shape, dtype: Any) -> Array:
    """`values(i)` at index i of the last axis, the same at every other index."""
    row = values(jnp.arange(shape[-1], dtype=jnp.float32))
    return jnp.broadcast_to(row, shape).astype(dtype)


@cache
def hippo_legs(states: int) -> tuple[np.ndarray, np.ndarray]:
    """HiPPO-LegS as A = V (Lambda - P P*) V*, Re Lambda = -1/2, one of each conjugate pair.

    From A[n, k] = -sqrt((2n + 1)(2k + 1)) for n > k, -(n + 1) for n = k, and
    B[n] = sqrt(2n + 1) = sqrt(2) P[n] (Gu et al. 2021, arXiv:2111.00396, appendix C). A + P P^T
    is -1/2 plus a skew-symmetric matrix. The phases of the eigenvectors V are free; here they make
    V* P positive.

    Args:
        states: N, even.

    Returns:
        Im Lambda > 0, ascending, and V* P; float64 [N/2] each.
    """
    p_N = np.sqrt(np.arange(states) + 0.5)
    below_NN = -np.tril(np.outer(p_N, p_N), -1)
    frequency_N, v_NN = np.linalg.eigh(-1j * (below_NN - below_NN.T))
    positive = slice(states // 2, None)
    return frequency_N[positive], np.abs(v_NN.conj().T @ p_N)[positive]
