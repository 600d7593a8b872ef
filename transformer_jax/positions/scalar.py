"""The position as one number in [0, 1), the simplest scheme that gives an order.

    x_p = word_p + (p / max_length) * sqrt(D) * w,        w: [D], learned

The number enters the residual stream along one learned direction. Neighbours differ by
only 1 / max_length, so they are hard to tell apart, which is why Vaswani et al. 2017 chose
sinusoids. The number is a fraction of `max_length` and not of the sentence's length,
because a decoder does not know how long its sentence will be. Beyond `max_length` it would
leave [0, 1), so longer sequences are refused.
"""

from dataclasses import dataclass
from typing import ClassVar

import jax
import jax.numpy as jnp
from flax import linen as nn
from jax import Array

from transformer_jax.positions.base import Position, PositionConfig


class ScalarPosition(Position):
    """Adds position / max_length times a learned direction to the word embeddings."""

    def setup(self) -> None:
        width = self.context.d_model
        initial = nn.initializers.normal(stddev=width**-0.5)
        self.direction = self.weight("direction", initial, (width,), ("embed",))

    def check_length(self, length: int) -> None:
        others = ", or use position=sinusoidal, rope, alibi or t5"
        self.context.check_length(length, "position=scalar", others)

    def embed(self, x: Array, positions: Array) -> Array:
        """x [..., L, D] + share of max_length (of positions [L]) times the direction."""
        share_L1 = positions[:, None].astype(jnp.float32) / self.context.max_length
        added_LD = share_L1 * self.direction[None] * self.context.d_model**0.5
        return x + jax.lax.broadcast_to_rank(added_LD.astype(x.dtype), x.ndim)


@dataclass(frozen=True)
class Scalar(PositionConfig):
    """The position as one number has no options."""

    module: ClassVar[type[Position]] = ScalarPosition
