"""No positions at all: the encoder sees a bag of words."""

from transformer_jax.positions.base import Position


class NoPosition(Position):
    """Every hook is the identity."""
