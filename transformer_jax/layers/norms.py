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
