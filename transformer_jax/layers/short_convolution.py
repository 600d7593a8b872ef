"""A causal convolution with a few taps a channel, as Mamba puts before its scan."""

from typing import Any

import jax.numpy as jnp
from flax import linen as nn
from jax import Array

from transformer_jax.layers.initializers import torch_uniform
from transformer_jax.layers.parameters import Layer
from transformer_jax.ops.convolutions import short_convolution, short_convolution_step


class ShortConvolution(Layer):
    """y_t = bias + sum_w kernel[w] x_{t - width + 1 + w}, each channel on its own.

    A width of 0 is no convolution: y = x, and the windows hold nothing.
    """

    features: int
    width: int
    dtype: Any = jnp.float32
    param_dtype: Any = jnp.float32

    def setup(self) -> None:
        if not self.width:
            return
        shape, zeros = (self.width, self.features), nn.initializers.zeros
        self.kernel = self.weight("kernel", torch_uniform, shape, (None, "mlp"))
        self.bias = self.weight("bias", zeros, shape[1:], ("mlp",))

    def __call__(self, x_BLE: Array) -> Array:
        """[B, L, E] -> [B, L, E]."""
        if not self.width:
            return x_BLE
        return (short_convolution(x_BLE, self.kernel) + self.bias[None, None]).astype(self.dtype)

    def centered(self, x_BLE: Array, mask_BL: Array) -> Array:
        """As `__call__`, with half of the taps on what follows; padding counts as zeros."""
        ahead = self.width // 2
        x_BLE = jnp.where(mask_BL[..., None], x_BLE, 0)
        return self(jnp.pad(x_BLE, ((0, 0), (0, ahead), (0, 0))))[:, ahead:]

    def init_window(self, batch: int) -> Array:
        """The inputs before the first: [B, width - 1, E] zeros."""
        return jnp.zeros((batch, max(self.width - 1, 0), self.features), self.dtype)

    def step(self, x_BE: Array, window_BWE: Array) -> tuple[Array, Array]:
        """One position: ([B, E], the next window)."""
        if not self.width:
            return x_BE, window_BWE
        y_BE, window_BWE = short_convolution_step(x_BE, window_BWE, self.kernel)
        return (y_BE + self.bias[None]).astype(self.dtype), window_BWE
