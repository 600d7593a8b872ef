"""Dense projections whose parameters carry logical axis names."""

from collections.abc import Callable
from typing import Any

import jax.numpy as jnp
from flax import linen as nn
from jax import Array

from transformer_jax.layers.parameters import Layer, MatrixBox
from transformer_jax.ops.matmul import matmul
from transformer_jax.ops.matrices import reshaped

#: Glorot and Bengio 2010; what the Transformer's reference code uses.
default_kernel_init = nn.initializers.xavier_uniform()


class Dense(Layer):
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
        shape = (self.in_features, self.features)
        self.kernel = self.weight("kernel", self.kernel_init, shape, self.axes, MatrixBox)
        if self.use_bias:
            self.bias = self.weight("bias", nn.initializers.zeros, shape[1:], self.axes[1:])

    def __call__(self, x: Array) -> Array:
        """[..., in_features] -> [..., features]."""
        return self._apply(x, (self.in_features,), (self.features,))

    def split(self, x: Array, heads: int) -> Array:
        """[..., in_features] -> [..., heads, features / heads], without a reshape (`matmul`)."""
        return self._apply(x, (self.in_features,), (heads, self.features // heads))

    def join(self, x: Array) -> Array:
        """[..., H, K] with H K = in_features -> [..., features], without a reshape."""
        return self._apply(x, x.shape[-2:], (self.features,))

    def _apply(self, x: Array, inputs: tuple[int, ...], outputs: tuple[int, ...]) -> Array:
        kernel = reshaped(self.kernel, inputs, outputs)
        bias = self.bias.astype(jnp.float32).reshape(outputs) if self.use_bias else None
        return matmul(x, kernel, self.matmul_dtype, len(inputs), bias=bias, result=self.dtype)
