"""A layer of the encoder or the decoder: sublayers in residual connections.

An encoder's block mixes along the sequence and then applies the feed-forward network. A
decoder's block reads the memory between the two. With f a sublayer and x [B, L, D],

    pre-norm:    x + dropout(f(norm(x)))        (and one more norm after the stack)
    post-norm:   norm(x + dropout(f(x)))        (Vaswani et al. 2017)
"""

from collections.abc import Callable, Sequence
from typing import Any

from flax import linen as nn
from jax import Array

from transformer_jax.layers.dropout import Dropout
from transformer_jax.mixers.base import Mixer
from transformer_jax.models.config import ModelConfig

Function = Callable[[Array], Array]


def build_norm(config: ModelConfig) -> nn.Module:
    """A norm over d_model."""
    return config.norm.build(config.d_model, dtype=config.dtype, param_dtype=config.param_dtype)


class Residual(nn.Module):
    """The norm, dropout and addition around a sublayer."""

    config: ModelConfig

    def setup(self) -> None:
        self.norm = build_norm(self.config)
        self.dropout = Dropout(float(self.config.dropout_rate))

    def __call__(self, x: Array, sublayer: Function) -> Array:
        """x [..., D] after the residual connection around `sublayer`."""
        if self.config.norm_placement == "pre":
            return x + self.dropout(sublayer(self.norm(x)))
        return self.norm(x + self.dropout(sublayer(x)))


class Block(nn.Module):
    """Mixing, in the decoder then reading the memory, then the feed-forward network."""

    config: ModelConfig
    mixer: Mixer
    cross: Any  #: the decoder's CrossMixer; None in the encoder

    def setup(self) -> None:
        config = self.config
        self.mixer_residual = Residual(config)
        if self.cross is not None:
            self.cross_residual = Residual(config)
        self.feed_forward = config.feed_forward.build(
            config.d_model, config.d_ff, self.mixer.context.dtypes
        )
        self.feed_forward_residual = Residual(config)

    def __call__(self, x_BLD: Array, mask_BL: Array, memory: Sequence[Array] = ()) -> Array:
        """The whole sequence; `memory` is [B, M, D] and its mask [B, M], in the decoder."""

        def read(x_BTD: Array) -> Array:
            return self.cross.read(x_BTD, self.cross.project(*memory))

        return self._apply(x_BLD, lambda x_BLD: self.mixer(x_BLD, mask_BL), read)

    def step(self, x_BZD: Array, state: Any, projected: Any, position: Array) -> tuple[Array, Any]:
        """One token of each of Z beams, [B, Z, D]; `state` has B * Z rows."""

        def mix(x_BZD: Array) -> Array:
            nonlocal state
            x_ND = x_BZD.reshape(-1, x_BZD.shape[-1])
            y_ND, state = self.mixer.step(x_ND, state, position)
            return y_ND.reshape(x_BZD.shape)

        x_BZD = self._apply(x_BZD, mix, lambda x_BZD: self.cross.read(x_BZD, projected))
        return x_BZD, state

    def _apply(self, x: Array, mix: Function, read: Function) -> Array:
        x = self.mixer_residual(x, mix)
        if self.cross is not None:
            x = self.cross_residual(x, read)
        return self.feed_forward_residual(x, self.feed_forward)
