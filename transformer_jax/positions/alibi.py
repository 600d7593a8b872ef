"""ALiBi, attention with linear biases (Press et al. 2022, arXiv:2108.12409).

    score_h(i, j) -= slope_h * |i - j|,        slope_h = 2^(-8 h / H),  h = 1 ... H

Nothing is learned, and every length is defined: the paper's aim is quality beyond the
trained length. The paper is causal, where |i - j| = i - j. A bidirectional stack gets the
symmetric form, which depends on how far a token is but not on which side: the mirror image
of a sentence gives the mirror image of its outputs. If H is not a power of two, the slopes
of the next smaller power are followed by every other slope of the next larger one, as in
the authors' code.
"""

from dataclasses import dataclass
from typing import ClassVar

import jax.numpy as jnp
import numpy as np
from jax import Array

from transformer_jax.positions.base import Position, PositionConfig


def slopes(num_heads: int) -> np.ndarray:
    """[H] float32, the slope of each head."""
    power = 2 ** int(np.log2(num_heads))
    first = 2.0 ** (-8.0 * np.arange(1, power + 1) / power)
    between = 2.0 ** (-4.0 * np.arange(1, 2 * power, 2) / power)
    return np.concatenate([first, between[: num_heads - power]]).astype(np.float32)


class LinearBias(Position):
    """Lowers the scores in proportion to the distance, each head at its own slope."""

    def bias(self, q_positions: Array, k_positions: Array) -> Array:
        """[H, T, M] float32."""
        distances_TM = jnp.abs(q_positions[:, None] - k_positions[None, :]).astype(jnp.float32)
        return distances_TM[None] * -slopes(self.context.num_heads)[:, None, None]


@dataclass(frozen=True)
class Alibi(PositionConfig):
    """Attention with linear biases has no options."""

    module: ClassVar[type[Position]] = LinearBias
    shift_invariant: ClassVar[bool] = True
