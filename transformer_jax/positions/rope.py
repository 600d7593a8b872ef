"""Rotary positions, RoPE (Su et al. 2021, arXiv:2104.09864, eq. 15 and 34).

    (x_2i, x_2i+1)  ->  rotated by the angle p * base^(-2i / head_dim)

applied to queries and keys, so that their product depends on the difference of their
positions alone. Nothing is learned, and every position is defined, but beyond the trained
length there are angles that were not seen in training, and quality is known to fall.
"""

from dataclasses import dataclass
from typing import Annotated, ClassVar

import jax
import jax.numpy as jnp
from annotated_types import Gt
from jax import Array

from transformer_jax.errors import UserError
from transformer_jax.positions.base import Position, PositionConfig, PositionContext


def rotated(x_BLHK: Array, positions: Array, base: float) -> Array:
    """[..., L, H, K] with neighbouring pairs turned by their angles at positions [L]."""
    width = x_BLHK.shape[-1]
    rates = base ** (-jnp.arange(0, width, 2) / width)
    angles = positions[:, None, None].astype(jnp.float32) * rates[None, None]
    angles = jax.lax.broadcast_to_rank(angles, x_BLHK.ndim)
    cos, sin = jnp.cos(angles), jnp.sin(angles)
    pairs = x_BLHK.astype(jnp.float32).reshape(*x_BLHK.shape[:-1], width // 2, 2)
    even, odd = pairs[..., 0], pairs[..., 1]
    turned = jnp.stack([even * cos - odd * sin, even * sin + odd * cos], axis=-1)
    return turned.reshape(x_BLHK.shape).astype(x_BLHK.dtype)


class RotaryPosition(Position):
    """Rotates queries and keys by their positions."""

    config: "Rope"

    def rotate(
        self, q: Array, k: Array, q_positions: Array, k_positions: Array
    ) -> tuple[Array, Array]:
        base = self.config.base
        return rotated(q, q_positions, base), rotated(k, k_positions, base)


@dataclass(frozen=True)
class Rope(PositionConfig):
    """Options of rotary positions."""

    module: ClassVar[type[Position]] = RotaryPosition
    shift_invariant: ClassVar[bool] = True

    base: Annotated[float, Gt(1.0)] = 10000.0
    #: the slowest pair turns once in about 2 pi * base positions

    def check(self, context: PositionContext) -> None:
        if context.head_dim % 2:
            raise UserError(
                "rotary positions turn pairs of features and need an even head width, got "
                f"{context.head_dim}: set model.head_dim"
            )
