"""One layer of the encoder and one of the decoder.

pre-norm:  x + dropout(sublayer(norm(x)))        (and a last norm after the stack)
post-norm: norm(x + dropout(sublayer(x)))        (Vaswani et al. 2017)

Reversible residuals take a block apart into its sublayers' updates, dropout(sublayer(
norm(x))), and add them up in their own way: see `models.reversible`.
"""

from collections.abc import Callable
from typing import Any, ClassVar

import jax
from flax import linen as nn

from transformer_jax.layers.dropout import Dropout
from transformer_jax.layers.feed_forward import Mlp
from transformer_jax.layers.norms import LayerNorm
from transformer_jax.mixers.base import CrossMixer, Mixer
from transformer_jax.models.config import ModelConfig, layer_dtypes


def layer_norm(config: ModelConfig) -> nn.Module:
    """A LayerNorm over d_model."""
    return LayerNorm().build(config.d_model, dtype=config.dtype, param_dtype=config.param_dtype)


class Residual(nn.Module):
    """The norm, dropout and addition around a sublayer."""

    config: ModelConfig

    def setup(self) -> None:
        self.norm = layer_norm(self.config)
        self.dropout = Dropout(self.config.dropout_rate)

    def __call__(self, x: jax.Array, sublayer: Callable[[jax.Array], jax.Array]) -> jax.Array:
        """Applies `sublayer` to x [..., D] within the residual connection."""
        if self.config.norm == "pre":
            return x + self.update(x, sublayer)
        return self.norm(x + self.dropout(sublayer(x)))

    def update(self, x: jax.Array, sublayer: Callable[[jax.Array], jax.Array]) -> jax.Array:
        """What pre-norm adds to x."""
        return self.dropout(sublayer(self.norm(x)))


def _feed_forward(config: ModelConfig) -> nn.Module:
    options = Mlp(activation=config.activation, dropout_rate=config.feed_forward_dropout_rate)
    return options.build(config.d_model, config.d_ff, layer_dtypes(config))


class EncoderBlock(nn.Module):
    """Self-mixing, then feed-forward."""

    num_updates: ClassVar[int] = 2

    config: ModelConfig
    mixer: Mixer

    def setup(self) -> None:
        self.mixer_residual = Residual(self.config)
        self.feed_forward = _feed_forward(self.config)
        self.feed_forward_residual = Residual(self.config)

    def __call__(self, x_BSD: jax.Array, mask_BS: jax.Array) -> jax.Array:
        """[B, S, D] -> [B, S, D]."""
        x_BSD = self.mixer_residual(x_BSD, lambda x: self.mixer(x, mask_BS))
        return self.feed_forward_residual(x_BSD, self.feed_forward)

    def update(self, index: int, x_BSD: jax.Array, mask_BS: jax.Array) -> jax.Array:
        """What sublayer `index` adds under reversible residuals."""
        if index == 0:
            return self.mixer_residual.update(x_BSD, lambda x: self.mixer(x, mask_BS))
        return self.feed_forward_residual.update(x_BSD, self.feed_forward)


class DecoderBlock(nn.Module):
    """Causal self-mixing, then reading the memory, then feed-forward."""

    num_updates: ClassVar[int] = 3

    config: ModelConfig
    mixer: Mixer
    cross: CrossMixer

    def setup(self) -> None:
        self.mixer_residual = Residual(self.config)
        self.cross_residual = Residual(self.config)
        self.feed_forward = _feed_forward(self.config)
        self.feed_forward_residual = Residual(self.config)

    def __call__(
        self, x_BTD: jax.Array, mask_BT: jax.Array, memory_BSD: jax.Array, memory_mask_BS: jax.Array
    ) -> jax.Array:
        """[B, T, D] -> [B, T, D]."""
        x_BTD = self.mixer_residual(x_BTD, lambda x: self.mixer(x, mask_BT))
        projected = self.cross.project(memory_BSD, memory_mask_BS)
        return self._read_and_feed(x_BTD, projected)

    def step(
        self, x_BZD: jax.Array, state: Any, projected: Any, position: jax.Array
    ) -> tuple[jax.Array, Any]:
        """One token of each of the Z beams of each sentence; state leaves lead with B * Z."""
        new_state = state

        def self_mix(x_BZD: jax.Array) -> jax.Array:
            nonlocal new_state
            y_ND, new_state = self.mixer.step(x_BZD.reshape(-1, x_BZD.shape[-1]), state, position)
            return y_ND.reshape(x_BZD.shape)

        x_BZD = self.mixer_residual(x_BZD, self_mix)
        return self._read_and_feed(x_BZD, projected), new_state

    def update(
        self,
        index: int,
        x_BTD: jax.Array,
        mask_BT: jax.Array,
        memory_BSD: jax.Array,
        memory_mask_BS: jax.Array,
    ) -> jax.Array:
        """What sublayer `index` adds under reversible residuals."""
        if index == 0:
            return self.mixer_residual.update(x_BTD, lambda x: self.mixer(x, mask_BT))
        projected = self.cross.project(memory_BSD, memory_mask_BS) if index == 1 else None
        return self._update_after_mixing(index, x_BTD, projected)

    def update_step(
        self, index: int, x_BZD: jax.Array, state: Any, projected: Any, position: jax.Array
    ) -> tuple[jax.Array, Any]:
        """`update` for one token of each beam; only self-mixing changes the state."""
        if index > 0:
            return self._update_after_mixing(index, x_BZD, projected), state
        x_ND = self.mixer_residual.norm(x_BZD).reshape(-1, x_BZD.shape[-1])
        y_ND, state = self.mixer.step(x_ND, state, position)
        return y_ND.reshape(x_BZD.shape), state

    def _update_after_mixing(self, index: int, x_BTD: jax.Array, projected: Any) -> jax.Array:
        if index == 1:
            return self.cross_residual.update(x_BTD, lambda x: self.cross.read(x, projected))
        return self.feed_forward_residual.update(x_BTD, self.feed_forward)

    def _read_and_feed(self, x_BTD: jax.Array, projected: Any) -> jax.Array:
        x_BTD = self.cross_residual(x_BTD, lambda x: self.cross.read(x, projected))
        return self.feed_forward_residual(x_BTD, self.feed_forward)
