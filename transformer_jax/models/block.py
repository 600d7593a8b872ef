"""A layer of the encoder or the decoder: sublayers in residual connections.

An encoder's block mixes along the sequence and then applies the feed-forward network. A
decoder's block reads the memory between the two. With f a sublayer and x [B, L, D],

    pre-norm:    x + dropout(f(norm(x)))        (and one more norm after the stack)
    post-norm:   norm(x + dropout(f(x)))        (Vaswani et al. 2017)

Reversible residuals add the same updates dropout(f(norm(x))) to two streams; see
`models.reversible`.
"""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
from flax import linen as nn

from transformer_jax.layers.dropout import Dropout
from transformer_jax.mixers.base import Mixer
from transformer_jax.models.config import ModelConfig

Function = Callable[[jax.Array], jax.Array]

#: What a stack passes from block to block: x, or the two streams of reversible residuals.
Streams = Any


def build_norm(config: ModelConfig) -> nn.Module:
    """A norm over d_model."""
    return config.norm.build(config.d_model, dtype=config.dtype, param_dtype=config.param_dtype)


class Residual(nn.Module):
    """The norm, dropout and addition around a sublayer."""

    config: ModelConfig

    def setup(self) -> None:
        self.norm = build_norm(self.config)
        self.dropout = Dropout(float(self.config.dropout_rate))

    def __call__(self, x: jax.Array, sublayer: Function) -> jax.Array:
        """x [..., D] after the residual connection around `sublayer`."""
        if self.config.norm_placement == "pre":
            return x + self.update(x, sublayer)
        return self.norm(x + self.dropout(sublayer(x)))

    def update(self, x: jax.Array, sublayer: Function) -> jax.Array:
        """What pre-norm adds to x."""
        return self.dropout(sublayer(self.norm(x)))


class Sublayer(NamedTuple):
    """A function [..., D] -> [..., D] and the residual connection around it."""

    residual: Residual
    function: Function

    def update(self, x: jax.Array) -> jax.Array:
        """What is added to the residual stream."""
        return self.residual.update(x, self.function)


class ResidualScheme(NamedTuple):
    """How a stack's sublayers act on what is passed between them."""

    start: Callable[[jax.Array], Streams]
    apply: Callable[[Sequence[Sublayer], Streams], Streams]
    end: Callable[[Streams], jax.Array]


def _standard(sublayers: Sequence[Sublayer], x: jax.Array) -> jax.Array:
    for sublayer in sublayers:
        x = sublayer.residual(x, sublayer.function)
    return x


def _reversible(
    sublayers: Sequence[Sublayer], streams: tuple[jax.Array, jax.Array]
) -> tuple[jax.Array, jax.Array]:
    a, b = streams
    for sublayer in sublayers:
        a, b = b, a + sublayer.update(b)
    return a, b


RESIDUALS = {
    "standard": ResidualScheme(lambda x: x, _standard, lambda x: x),
    "reversible": ResidualScheme(lambda x: (x, x), _reversible, lambda ab: (ab[0] + ab[1]) / 2),
}


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

    def __call__(
        self, streams: Streams, mask_BL: jax.Array, memory: Sequence[jax.Array] = ()
    ) -> Streams:
        """The whole sequence; `memory` is [B, M, D] and its mask [B, M], in the decoder."""
        return self._apply(self.sublayers(mask_BL, memory), streams)

    def step(
        self, streams: Streams, state: Any, projected: Any, position: jax.Array
    ) -> tuple[Streams, Any]:
        """One token of each of Z beams, [B, Z, D]; `state` has B * Z rows."""
        next_state = state

        def mix(x_BZD: jax.Array) -> jax.Array:
            nonlocal next_state
            x_ND = x_BZD.reshape(-1, x_BZD.shape[-1])
            y_ND, next_state = self.mixer.step(x_ND, state, position)
            return y_ND.reshape(x_BZD.shape)

        streams = self._apply(
            self._sublayers(mix, lambda x: self.cross.read(x, projected)), streams
        )
        return streams, next_state

    def sublayers(self, mask_BL: jax.Array, memory: Sequence[jax.Array] = ()) -> list[Sublayer]:
        """The sublayers over a whole sequence; arguments as in `__call__`."""

        def read(x_BTD: jax.Array) -> jax.Array:
            return self.cross.read(x_BTD, self.cross.project(*memory))

        return self._sublayers(lambda x_BLD: self.mixer(x_BLD, mask_BL), read)

    def _sublayers(self, mix: Function, read: Function) -> list[Sublayer]:
        sublayers = [Sublayer(self.mixer_residual, mix)]
        if self.cross is not None:
            sublayers.append(Sublayer(self.cross_residual, read))
        return [*sublayers, Sublayer(self.feed_forward_residual, self.feed_forward)]

    def _apply(self, sublayers: list[Sublayer], streams: Streams) -> Streams:
        return RESIDUALS[self.config.residual].apply(sublayers, streams)
