"""Runs a mixer that only knows forwards in both directions, as Graves and Schmidhuber
(2005) did with recurrent networks.

    y = forwards(x) + R backwards(R x)                     combine = sum
    y = W [forwards(x), R backwards(R x)]                  combine = concat

R reverses each sequence's own real tokens and leaves its padding in place, so the
backward mixer starts at the last real token whatever the padded length. Masks are
prefixes, as everywhere in this library: real tokens first, padding after them.

The config of such a mixer extends `BothWaysConfig`: in the decoder it builds the causal
mixer itself, in the encoder this wrapper around two of them.
"""

from dataclasses import dataclass, replace
from typing import Any, ClassVar, Literal, NamedTuple

import jax.numpy as jnp
from jax import Array

from transformer_jax.layers.projections import Dense
from transformer_jax.mixers.base import Mixer, MixerConfig, MixerContext
from transformer_jax.ops.sequences import reverse_prefix
from transformer_jax.positions.base import Position


class RecurrentState(NamedTuple):
    """What a recurrent mixer keeps of the tokens so far, whose size does not grow with them.

    Attributes:
        recent: the last inputs of a short convolution, [B, taps - 1, channels], or the last token.
        hidden: the recurrence's state, arrays that lead with B.
    """

    recent: Array
    hidden: Any


@dataclass(frozen=True, kw_only=True)
class BothWaysConfig(MixerConfig):
    """Options of a causal mixer, and of how its two directions join in the encoder."""

    knows_order: ClassVar[bool] = True  # recurrences and convolutions, which need no scheme

    combine: Literal["sum", "concat"] = "sum"  #: encoder only; concat: side by side, projected
    share_weights: bool = False  #: encoder only; one set of weights reads in both directions

    def check(self, context: MixerContext, hooks: frozenset[str]) -> None:
        if context.causal:
            for option in ("combine", "share_weights"):
                self.refuse_unused(option, "a decoder reads forwards only; set it in model.encoder")

    def build_causal(self, context: MixerContext, position: Position) -> Mixer:
        """The mixer that reads forwards."""
        return self.module(self, context, position)

    def build(self, context: MixerContext, position: Position) -> Mixer:
        """The causal mixer in the decoder, `BothWays` in the encoder."""
        if context.causal:
            return self.build_causal(context, position)
        return BothWays(self, context, position)


class BothWays(Mixer):
    """Two causal mixers, one of which reads backwards."""

    config: BothWaysConfig

    def setup(self) -> None:
        causal = replace(self.context, causal=True)
        self.forwards = self.config.build_causal(causal, self.position)
        self.backwards = self.forwards
        if not self.config.share_weights:
            self.backwards = self.config.build_causal(causal, self.position)
        if self.config.combine == "concat":
            d_model = self.context.d_model
            self.join = Dense(2 * d_model, d_model, ("mlp", "embed"), **self.context.dtypes)

    def __call__(self, x_BLD: Array, mask_BL: Array) -> Array:
        ahead_BLD = self.forwards(x_BLD, mask_BL)
        back_BLD = self.backwards(reverse_prefix(x_BLD, mask_BL), mask_BL)
        back_BLD = reverse_prefix(back_BLD, mask_BL)
        if self.config.combine == "sum":
            return ahead_BLD + back_BLD
        return self.join(jnp.concatenate([ahead_BLD, back_BLD], axis=-1))
