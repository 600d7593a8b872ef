"""Rotary positions, RoPE (Su et al. 2021, arXiv:2104.09864, eq. 15 and 34).

    (x_2i, x_2i+1)  ->  rotated by the angle p * base^(-2i / head_dim)

applied to queries and keys, so that their product depends on the difference of their
positions alone. Nothing is learned, and every position is defined, but angles that were
not seen in training follow past the trained length, where quality is known to fall.
"""

from dataclasses import dataclass
from typing import Any, ClassVar

import jax
import jax.numpy as jnp

from transformer_jax.errors import UserError
from transformer_jax.positions.base import Position


@dataclass(frozen=True)
class RopeOptions:
    """Options of rotary positions."""

    base: float = 10000.0  #: the slowest pair turns once in about 2 pi * base positions


def rotated(x_BLHK: jax.Array, positions: jax.Array, base: float) -> jax.Array:
    """[..., L, H, K] with neighbouring pairs turned by their angles at positions [L]."""
    width = x_BLHK.shape[-1]
    rates = base ** (-jnp.arange(0, width, 2) / width)
    angles_L1R = (positions[:, None].astype(jnp.float32) * rates)[:, None, :]
    cos, sin = jnp.cos(angles_L1R), jnp.sin(angles_L1R)
    pairs = x_BLHK.astype(jnp.float32).reshape(*x_BLHK.shape[:-1], width // 2, 2)
    even, odd = pairs[..., 0], pairs[..., 1]
    turned = jnp.stack([even * cos - odd * sin, even * sin + odd * cos], axis=-1)
    return turned.reshape(x_BLHK.shape).astype(x_BLHK.dtype)


class Rope(Position):
    """Rotates queries and keys by their positions."""

    Options: ClassVar[Any] = RopeOptions
    shift_invariant: ClassVar[bool] = True
    options: RopeOptions = RopeOptions()

    @classmethod
    def check(cls, options: Any, key: str, *, d_model: int, head_dim: int) -> None:
        """See `Position`."""
        if head_dim % 2:
            raise UserError(
                f"position=rope turns pairs of features and needs an even head width, got "
                f"{head_dim}: set model.head_dim"
            )
        if options.base <= 1.0:
            raise UserError(f"{key}.base={options.base}: must be more than 1")

    def rotate(
        self, q: jax.Array, k: jax.Array, q_positions: jax.Array, k_positions: jax.Array
    ) -> tuple[jax.Array, jax.Array]:
        """See `Position`."""
        base = self.options.base
        return rotated(q, q_positions, base), rotated(k, k_positions, base)
