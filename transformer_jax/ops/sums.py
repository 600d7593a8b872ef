"""Floats between products of int8, the same to the bit in every program.

A bit of a norm or of attention can move an activation to the next whole number, so in int8 what a
compiler does with floats matters. XLA's CPU backend sums 8 rows in another order than 32, takes
one of two functions for exp, and rounds a product and a sum at once or one after the other, as it
suits the program. In float64 the first two move a result by less than float32 can show, but for
near ties, and `product` prevents the third.
"""

from collections.abc import Callable
from contextlib import AbstractContextManager
from contextvars import ContextVar
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from jax import Array

from transformer_jax.ops.platform import by_platform, tracing_with

#: What replaces float32 on a CPU.
_WIDE: ContextVar[bool] = ContextVar("wide sums", default=False)


def wide_sums(wide: bool) -> AbstractContextManager[None]:
    """What is traced in this context is computed in float64 on a CPU, if `wide`."""
    return tracing_with(_WIDE, wide)


def _wide(function: Callable[..., Array], *arrays: Array) -> Array:
    """A function of float32 arrays; with its inside in float64 where that is asked for."""

    def compute(*given: Any) -> Array:
        *arrays, wide = given
        with jax.enable_x64(wide):
            dtype = jnp.float64 if wide else jnp.float32
            return function(*(x.astype(dtype) for x in arrays)).astype(jnp.float32)

    return by_platform(compute, *arrays, cpu=True, other=False)


def _sum(x: Array) -> Array:
    return x.sum(axis=-1, keepdims=True)


def mean(x: Array) -> Array:
    """[..., N] float32 -> [..., 1]."""
    return _wide(_sum, x) / x.shape[-1] if _WIDE.get() else x.mean(axis=-1, keepdims=True)


def softmax(x: Array) -> Array:
    """[..., N] float32 -> the same shape; rows sum to 1."""
    if not _WIDE.get():
        return jax.nn.softmax(x, axis=-1)
    y = exp(x - x.max(axis=-1, keepdims=True))
    return y / _wide(_sum, y)


def logsumexp(x: Array) -> Array:
    """[..., N] float32 -> [..., 1]."""
    if not _WIDE.get():
        return jax.nn.logsumexp(x, axis=-1, keepdims=True)
    largest = x.max(axis=-1, keepdims=True)
    return largest + jnp.log(_wide(_sum, jnp.exp(x - largest)))


def exp(x: Array) -> Array:
    """The exponential of float32."""
    return _wide(jnp.exp, x) if _WIDE.get() else jnp.exp(x)


def einsum(equation: str, a: Array, b: Array) -> Array:
    """`jnp.einsum` of two arrays, in float32."""
    return _wide(partial(jnp.einsum, equation), a, b) if _WIDE.get() else einsum_32(equation, a, b)


def einsum_32(equation: str, a: Array, b: Array) -> Array:
    """`jnp.einsum` of two arrays, summed up in float32 whatever `wide_sums` says."""
    return jnp.einsum(equation, a, b, preferred_element_type=jnp.float32)


def product(x: Array, y: Array) -> Array:
    """x * y, which may enter a sum."""
    return apart(x * y) if _WIDE.get() else x * y


def apart(x: Array) -> Array:
    """x, a product of floats that is rounded before it enters a sum."""
    return jnp.maximum(x, jnp.finfo(x.dtype).min)
