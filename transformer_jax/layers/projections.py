"""Dense projections whose parameters carry logical axis names."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from flax import linen as nn

from transformer_jax.ops.matmul import matmul

#: Glorot and Bengio 2010; what the Transformer's reference code uses.
default_kernel_init = nn.initializers.xavier_uniform()


class Dense(nn.Module):
    """y = x W + b on the last axis.

    Attributes:
        in_features: size of the last axis of the input.
        features: size of the last axis of the output.
        axes: logical names of W's two axes; `parallel/` maps them to the mesh.
        dtype: of the output.
        matmul_dtype: of the product's operands; it accumulates in float32.
    """

    in_features: int
    features: int
    axes: tuple[str, str]
    use_bias: bool = True
    dtype: Any = jnp.float32
    matmul_dtype: Any = jnp.float32
    param_dtype: Any = jnp.float32
    kernel_init: Callable[..., Any] = default_kernel_init

    def setup(self) -> None:
        self.kernel = self.param(
            "kernel",
            nn.with_logical_partitioning(self.kernel_init, self.axes),
            (self.in_features, self.features),
            self.param_dtype,
        )
        if self.use_bias:
            self.bias = self.param(
                "bias",
                nn.with_logical_partitioning(nn.initializers.zeros_init(), self.axes[1:]),
                (self.features,),
                self.param_dtype,
            )

    def __call__(self, x: jax.Array) -> jax.Array:
        """[..., in_features] -> [..., features]."""
        return self._apply(x, self.kernel, contracted=1)

    def split(self, x: jax.Array, heads: int) -> jax.Array:
        """[..., in_features] -> [..., heads, features / heads], without a reshape (`matmul`)."""
        return self._apply(x, self.kernel.reshape(self.in_features, heads, -1), contracted=1)

    def join(self, x: jax.Array) -> jax.Array:
        """[..., H, K] with H K = in_features -> [..., features], without a reshape."""
        return self._apply(x, self.kernel.reshape(*x.shape[-2:], self.features), contracted=2)

    def _apply(self, x: jax.Array, kernel: jax.Array, contracted: int) -> jax.Array:
        y = matmul(x, kernel, self.matmul_dtype, contracted)
        if self.use_bias:
            y = y + self.bias.astype(jnp.float32).reshape(kernel.shape[contracted:])
        return y.astype(self.dtype)
