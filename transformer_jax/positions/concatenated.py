"""The position beside the word instead of added to it.

    x_p = [word_p ; PE(p)],        word_p: D - width features, PE(p): `width` sinusoids

The sinusoids of Vaswani et al. 2017 (see `sinusoidal.py`) in features of their own, so
that word and place cannot be confused; the residual stream stays D wide, so the words
give up `width` features. Word embeddings, and a vocabulary projection tied to them, are
D - width wide: then logits are read from the word features of the last layer alone, as
if the output table had zeros at the position features. An untied projection
(`tie_embeddings=none`) reads all D. Defined for every position.
"""

from dataclasses import dataclass
from typing import Any, ClassVar

import jax
import jax.numpy as jnp

from transformer_jax.errors import UserError
from transformer_jax.positions.base import Position
from transformer_jax.positions.sinusoidal import sinusoids


@dataclass(frozen=True)
class ConcatenatedOptions:
    """Options of concatenated positions."""

    width: int = 0  #: features that hold the position; 0 = a quarter of d_model


def _width(d_model: int, options: ConcatenatedOptions) -> int:
    return options.width or d_model // 4


class Concatenated(Position):
    """Writes the sinusoids beside the word embeddings."""

    Options: ClassVar[Any] = ConcatenatedOptions
    options: ConcatenatedOptions = ConcatenatedOptions()

    @classmethod
    def check(cls, options: Any, key: str, *, d_model: int, head_dim: int) -> None:
        """See `Position`."""
        if not 0 < _width(d_model, options) < d_model:
            raise UserError(
                f"{key}.width={options.width}: the position takes this many of the "
                f"{d_model} features (model.d_model); it must lie between 1 and {d_model - 1}"
            )

    @classmethod
    def word_width(cls, d_model: int, options: Any) -> int:
        """What the position leaves."""
        return d_model - _width(d_model, options)

    def embed(self, x: jax.Array, positions: jax.Array) -> jax.Array:
        """x [..., L, D - width] and the sinusoids of positions [L] -> [..., L, D]."""
        beside = sinusoids(positions, _width(self.d_model, self.options)).astype(x.dtype)
        return jnp.concatenate([x, jnp.broadcast_to(beside, (*x.shape[:-1], beside.shape[-1]))], -1)
