"""No positions at all: an encoder of attention alone sees a bag of words."""

from typing import ClassVar

from transformer_jax.positions.base import Position


class NoPosition(Position):
    """Every hook is the identity."""

    shift_invariant: ClassVar[bool] = True
