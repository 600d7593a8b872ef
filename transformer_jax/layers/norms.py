"""Layer normalisation (Ba et al. 2016, arXiv:1607.06450), statistics in float32."""

from typing import Any

import jax
import jax.numpy as jnp
from flax import linen as nn


class LayerNorm(nn.Module):
    """(x - mean) / sqrt(var + 1e-6) * scale + bias over the last axis."""

    features: int
    dtype: Any = jnp.float32
    param_dtype: Any = jnp.float32

    def setup(self) -> None:
        shape = (self.features,)
        named = nn.with_logical_partitioning
        self.scale = self.param(
            "scale", named(nn.initializers.ones_init(), ("embed",)), shape, self.param_dtype
        )
        self.bias = self.param(
            "bias", named(nn.initializers.zeros_init(), ("embed",)), shape, self.param_dtype
        )

    def __call__(self, x: jax.Array) -> jax.Array:
        """[..., D] -> [..., D]."""
        x = x.astype(jnp.float32)
        mean = x.mean(axis=-1, keepdims=True)
        centred = x - mean
        variance = (centred * centred).mean(axis=-1, keepdims=True)
        y = centred * jax.lax.rsqrt(variance + 1e-6)
        return (y * self.scale + self.bias).astype(self.dtype)


class RMSNorm(nn.Module):
    """x / sqrt(mean(x^2) + epsilon) * scale (Zhang and Sennrich 2019, arXiv:1910.07467).

    Attributes:
        features: size of the last axis.
        groups: the mean is taken over each of as many equal parts of the last axis.
    """

    features: int
    groups: int = 1
    epsilon: float = 1e-5
    dtype: Any = jnp.float32
    param_dtype: Any = jnp.float32

    def setup(self) -> None:
        self.scale = self.param(
            "scale",
            nn.with_logical_partitioning(nn.initializers.ones_init(), ("mlp",)),
            (self.features,),
            self.param_dtype,
        )

    def __call__(self, x: jax.Array) -> jax.Array:
        """[..., features] -> [..., features]."""
        parts = x.astype(jnp.float32).reshape(*x.shape[:-1], self.groups, -1)
        mean_square = (parts * parts).mean(axis=-1, keepdims=True)
        y = (parts * jax.lax.rsqrt(mean_square + self.epsilon)).reshape(x.shape)
        return (y * self.scale).astype(self.dtype)


class GroupNorm(nn.Module):
    """LayerNorm over each of `groups` equal parts of the last axis (Wu and He 2018,
    arXiv:1803.08494, without the axes of space).
    """

    features: int
    groups: int
    epsilon: float = 1e-5
    dtype: Any = jnp.float32
    param_dtype: Any = jnp.float32

    def setup(self) -> None:
        named, shape = nn.with_logical_partitioning, (self.features,)
        self.scale = self.param(
            "scale", named(nn.initializers.ones_init(), ("heads",)), shape, self.param_dtype
        )
        self.bias = self.param(
            "bias", named(nn.initializers.zeros_init(), ("heads",)), shape, self.param_dtype
        )

    def __call__(self, x: jax.Array) -> jax.Array:
        """[..., features] -> [..., features]."""
        parts = x.astype(jnp.float32).reshape(*x.shape[:-1], self.groups, -1)
        centred = parts - parts.mean(axis=-1, keepdims=True)
        variance = (centred * centred).mean(axis=-1, keepdims=True)
        y = (centred * jax.lax.rsqrt(variance + self.epsilon)).reshape(x.shape)
        return (y * self.scale + self.bias).astype(self.dtype)
