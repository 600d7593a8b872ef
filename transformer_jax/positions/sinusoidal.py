"""Sinusoidal positions (Vaswani et al. 2017, arXiv:1706.03762, section 3.5).

    PE(p, 2i) = sin(p / 10000^(2i/D)),    PE(p, 2i+1) = cos(p / 10000^(2i/D))

added to the embeddings. Defined for every position, but quality beyond the trained length
is not promised.
"""

from dataclasses import dataclass

import jax
import jax.numpy as jnp

from transformer_jax.positions.base import Position, PositionConfig, PositionContext


def sinusoids(positions: jax.Array, features: int) -> jax.Array:
    """[...] positions -> [..., features] float32, sine and cosine interleaved."""
    rates = 10000.0 ** (-jnp.arange(0, features, 2) / features)
    angles = positions[..., None].astype(jnp.float32) * rates
    pairs = jnp.stack([jnp.sin(angles), jnp.cos(angles)], axis=-1)
    return pairs.reshape(*positions.shape, -1)[..., :features]


@dataclass(frozen=True)
class Sinusoidal(PositionConfig):
    """Sinusoidal positions have no options."""

    def build(self, context: PositionContext) -> Position:
        return AddedSinusoids(self, context)


class AddedSinusoids(Position):
    """Adds the sinusoids to the word embeddings."""

    def embed(self, x: jax.Array, positions: jax.Array) -> jax.Array:
        """x [..., L, D] + PE(positions [L])."""
        return x + sinusoids(positions, self.context.d_model).astype(x.dtype)
