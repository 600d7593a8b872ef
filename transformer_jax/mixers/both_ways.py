"""Runs a mixer that only knows forwards in both directions, as Graves and Schmidhuber
(2005) did with recurrent networks.

    y = forwards(x) + R backwards(R x)                     combine = sum
    y = W [forwards(x), R backwards(R x)]                  combine = concat

R reverses each sequence's own real tokens and leaves its padding where it stands, so
the backward mixer starts at the last real token whatever the padded length. Masks are
prefixes, as everywhere in this library: real tokens first, padding after them.

`both_ways(Mamba)` in the registry is Mamba itself in the decoder and this in the
encoder; no mixer needs a second name.
"""

from dataclasses import dataclass, replace
from typing import Any, ClassVar, Literal, cast

import jax
import jax.numpy as jnp

from transformer_jax.layers.projections import Dense
from transformer_jax.mixers.base import Mixer, MixerContext, State
from transformer_jax.mixers.checks import refuse_option
from transformer_jax.ops.sequences import reverse_prefix


@dataclass(frozen=True)
class BothWaysOptions:
    """How a causal mixer's two directions join in the encoder; base of its own options."""

    combine: Literal["sum", "concat"] = "sum"  #: concat: side by side, then a projection
    share_weights: bool = False  #: one set of weights reads in both directions


class BothWays(Mixer):
    """A causal mixer in the decoder, two of them in the encoder.

    Attributes:
        one_way: the causal mixer's class.
    """

    one_way: ClassVar[type[Mixer]]
    Options: ClassVar[Any]

    @classmethod
    def check(cls, context: MixerContext, options: Any, *, hooks: frozenset[str], key: str) -> None:
        """See `Mixer`; the causal mixer's own check included."""
        cls.one_way.check(context, options, hooks=hooks, key=key)
        if context.causal:
            why = "a decoder reads one way only; set it in model.encoder.options"
            refuse_option(options, key, "combine", why)
            refuse_option(options, key, "share_weights", why)

    def setup(self) -> None:
        c, options = self.context, self.options
        parts = {"context": replace(c, causal=True), "options": options, "position": self.position}
        self.forwards = self.one_way(**parts)
        if not c.causal:
            if not options.share_weights:
                self.backwards = self.one_way(**parts)
            if options.combine == "concat":
                self.join = Dense(2 * c.d_model, c.d_model, ("mlp", "embed"), **c.dtypes)

    def __call__(self, x_BLD: jax.Array, mask_BL: jax.Array) -> jax.Array:
        """See `Mixer`."""
        ahead_BLD = self.forwards(x_BLD, mask_BL)
        if self.context.causal:
            return ahead_BLD
        reversed_BLD = reverse_prefix(x_BLD, mask_BL)
        backwards = self.forwards if self.options.share_weights else self.backwards
        back_BLD = backwards(reversed_BLD, mask_BL)
        back_BLD = reverse_prefix(back_BLD, mask_BL)
        if self.options.combine == "sum":
            return ahead_BLD + back_BLD
        return self.join(jnp.concatenate([ahead_BLD, back_BLD], axis=-1))

    def init_state(self, batch: int, max_length: int) -> State:
        """The causal mixer's."""
        return self.forwards.init_state(batch, max_length)

    def step(self, x_BD: jax.Array, state: State, position: jax.Array) -> tuple[jax.Array, State]:
        """The causal mixer's."""
        return self.forwards.step(x_BD, state, position)


def both_ways(one_way: type[Mixer]) -> type[Mixer]:
    """The class to register for a causal mixer whose options extend `BothWaysOptions`."""
    inherited = {
        name: getattr(one_way, name)
        for name in ("Options", "refuses", "honours", "knows_order", "quadratic")
        if hasattr(one_way, name)
    }
    body = {"one_way": one_way, "__doc__": one_way.__doc__, "__module__": __name__, **inherited}
    return cast(type[Mixer], type(one_way.__name__, (BothWays,), body))
