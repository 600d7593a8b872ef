"""Positions concatenated to the word embeddings instead of added to them.

    x_p = [word_p ; PE(p)],        word_p: D - width features, PE(p): `width` sinusoids

The sinusoids of Vaswani et al. 2017 (see `sinusoidal.py`) in features of their own, so
that word and position cannot be confused. The residual stream stays D wide, so the words
have `width` features less. Word embeddings, and a vocabulary projection tied to them, are
D - width wide: logits then depend only on the word features of the last layer, as if the
output table had zeros at the position features. An untied projection
(`tie_embeddings=none`) reads all D. Defined for every position.
"""

from dataclasses import dataclass
from typing import ClassVar

import jax.numpy as jnp
from jax import Array
from pydantic import PositiveInt

from transformer_jax.errors import UserError
from transformer_jax.positions.base import Position, PositionConfig, PositionContext
from transformer_jax.positions.sinusoidal import sinusoids


class ConcatenatedSinusoids(Position):
    """Concatenates the sinusoids to the word embeddings."""

    config: "Concatenated"

    def embed(self, x: Array, positions: Array) -> Array:
        """x [..., L, D - width] and the sinusoids of positions [L] -> [..., L, D]."""
        width = self.config.position_width(self.context.d_model)
        position_LW = sinusoids(positions, width).astype(x.dtype)
        return jnp.concatenate([x, jnp.broadcast_to(position_LW, (*x.shape[:-1], width))], -1)


@dataclass(frozen=True)
class Concatenated(PositionConfig):
    """Options of concatenated positions."""

    module: ClassVar[type[Position]] = ConcatenatedSinusoids

    width: PositiveInt | None = None  #: features that hold the position; None = d_model / 4

    def check(self, context: PositionContext) -> None:
        if not 0 < self.position_width(context.d_model) < context.d_model:
            raise UserError(
                f"width={self.width}: the position takes this many of the {context.d_model} "
                f"features (model.d_model); it must be between 1 and {context.d_model - 1}"
            )

    def position_width(self, d_model: int) -> int:
        """Features that hold the position."""
        return d_model // 4 if self.width is None else self.width

    def word_width(self, d_model: int) -> int:
        """What the position leaves."""
        return d_model - self.position_width(d_model)
