"""Learned positions (Gehring et al. 2017, arXiv:1705.03122; Vaswani et al. 2017, section 3.5).

    x_p = word_p + sqrt(D) * table[p],        table: [max_length, D]

One vector for each position. There is none beyond `max_length`, so a longer sequence is
refused when the model is traced. Positions that are rare in training (the ends of the
longest sentences) are learned badly.
"""

from dataclasses import dataclass
from typing import ClassVar

import jax
import jax.numpy as jnp
from flax import linen as nn
from jax import Array

from transformer_jax.positions.base import Position, PositionConfig


class LearnedPosition(Position):
    """Adds a learned vector for each position to the word embeddings."""

    def setup(self) -> None:
        # Like the word embeddings: deviation D^-0.5, scaled by sqrt(D) where it is used, so
        # that the optimizer's steps have the same effect on both.
        shape = self.context.max_length, self.context.d_model
        initial = nn.initializers.normal(stddev=self.context.d_model**-0.5)
        self.table = self.weight("table", initial, shape, ("positions", "embed"))

    def check_length(self, length: int) -> None:
        others = ", or use position=sinusoidal, rope, alibi or t5"
        self.context.check_length(length, "position=learned", others)

    def embed(self, x: Array, positions: Array) -> Array:
        """x [..., L, D] + the vectors of positions [L]."""
        vectors_LD = jnp.take(self.table, positions, axis=0) * self.context.d_model**0.5
        return x + jax.lax.broadcast_to_rank(vectors_LD.astype(x.dtype), x.ndim)


@dataclass(frozen=True)
class Learned(PositionConfig):
    """Learned positions have no options."""

    module: ClassVar[type[Position]] = LearnedPosition
