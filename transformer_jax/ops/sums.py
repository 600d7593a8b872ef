"""Sums over the last axis that are the same in every program, where int8 asks for it.

A compiler adds floats in an order that depends on the program: XLA's CPU backend sums 8 rows in
another one than 32. In float64 the order moves a sum by less than float32 can show, but for near
ties. In int8 that matters, as a bit of a norm can move an activation to the next whole number.
"""

import contextlib
from collections.abc import Iterator
from contextvars import ContextVar

import jax
import jax.numpy as jnp

from transformer_jax.ops.platform import by_platform

_WIDE: ContextVar[bool] = ContextVar("wide sums", default=False)


@contextlib.contextmanager
def wide_sums(wide: bool) -> Iterator[None]:
    """What is traced in this context sums in float64 on a CPU, if `wide`."""
    token = _WIDE.set(wide)
    try:
        yield
    finally:
        _WIDE.reset(token)


def _sum(x: jax.Array, wide: bool) -> jax.Array:
    with jax.enable_x64(wide):
        dtype = jnp.float64 if wide else jnp.float32
        return x.astype(dtype).sum(axis=-1, keepdims=True).astype(jnp.float32)


def mean(x: jax.Array) -> jax.Array:
    """[..., N] float32 -> [..., 1]."""
    if not _WIDE.get():
        return x.mean(axis=-1, keepdims=True)
    return by_platform(_sum, x, cpu=True, other=False) / x.shape[-1]


def softmax(x: jax.Array) -> jax.Array:
    """[..., N] float32 -> the same shape; rows sum to 1."""
    if not _WIDE.get():
        return jax.nn.softmax(x, axis=-1)
    y = jnp.exp(x - x.max(axis=-1, keepdims=True))
    return y / by_platform(_sum, y, cpu=True, other=False)


def logsumexp(x: jax.Array) -> jax.Array:
    """[..., N] float32 -> [..., 1]."""
    if not _WIDE.get():
        return jax.nn.logsumexp(x, axis=-1, keepdims=True)
    largest = x.max(axis=-1, keepdims=True)
    return largest + jnp.log(by_platform(_sum, jnp.exp(x - largest), cpu=True, other=False))
