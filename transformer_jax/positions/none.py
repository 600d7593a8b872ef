"""No positions at all: an encoder of attention alone sees a bag of words."""

from dataclasses import dataclass
from typing import ClassVar

from transformer_jax.positions.base import Position, PositionConfig


@dataclass(frozen=True)
class NoPosition(PositionConfig):
    """Every hook is the identity."""

    module: ClassVar[type[Position]] = Position
    shift_invariant: ClassVar[bool] = True
