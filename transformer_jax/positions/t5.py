"""T5's relative bias (Raffel et al. 2020, arXiv:1910.10683, section 2.1).

    score_h(i, j) += multiplier * table[bucket(j - i), h]

Distances fall into buckets: one each for the short ones, logarithmically wider ones up
to `max_distance`, and the last for all larger ones. A bidirectional stack uses half of the
buckets for each direction; a causal one needs none for the future. All layers of a stack
share the table, as in T5. Every length is defined, but distances beyond `max_distance` are
not distinguished. Unlike in T5, scores are divided by sqrt(head_dim).

T5 has no multiplier (1). Adam moves a number by about the learning rate in a step, whatever its
gradient is. A score is a sum over many such numbers, but the bias is a single one, so it needs
thousands of steps to reach a size that matters. A multiplier of m lets it move m times as far in
a step. The initial bias does not depend on it.
"""

import math
from dataclasses import dataclass
from typing import Annotated, ClassVar

import jax.numpy as jnp
from annotated_types import Ge, MultipleOf
from flax import linen as nn
from jax import Array
from pydantic import PositiveFloat, PositiveInt

from transformer_jax.errors import UserError
from transformer_jax.positions.base import Position, PositionConfig, PositionContext


def relative_buckets(
    distances: Array, *, bidirectional: bool, num_buckets: int, max_distance: int
) -> Array:
    """The bucket in [0, num_buckets) of each distance (key minus query position), int32.

    A causal stack's future (distance > 0), which is masked, shares bucket 0.
    """
    first = jnp.zeros_like(distances)
    if bidirectional:
        num_buckets //= 2
        first = jnp.where(distances > 0, num_buckets, 0)
        distances = jnp.abs(distances)
    else:
        distances = jnp.maximum(-distances, 0)
    exact = num_buckets // 2
    # log is only used from `exact` on; the maximum keeps it finite below.
    ratio = jnp.log(jnp.maximum(distances, exact).astype(jnp.float32) / exact)
    steps = ratio / math.log(max_distance / exact) * (num_buckets - exact)
    wide = jnp.minimum(exact + steps.astype(jnp.int32), num_buckets - 1)
    return first + jnp.where(distances < exact, distances, wide)


class RelativeBias(Position):
    """Adds a learned number for each head and distance bucket to the scores."""

    config: "T5"

    def setup(self) -> None:
        variance = 1.0 / self.config.multiplier**2
        initial = nn.initializers.variance_scaling(variance, "fan_avg", "uniform")
        shape = (self.config.num_buckets, self.context.num_heads)
        self.table = self.weight("table", initial, shape, ("buckets", "heads"))

    def bias(self, q_positions: Array, k_positions: Array) -> Array:
        """[H, T, M] float32."""
        buckets_TM = relative_buckets(
            k_positions[None, :] - q_positions[:, None],
            bidirectional=not self.context.causal,
            num_buckets=self.config.num_buckets,
            max_distance=self.config.max_distance,
        )
        table = self.config.multiplier * self.table.astype(jnp.float32)
        return jnp.moveaxis(jnp.take(table, buckets_TM, axis=0), -1, 0)


@dataclass(frozen=True)
class T5(PositionConfig):
    """Options of T5's relative bias."""

    module: ClassVar[type[Position]] = RelativeBias
    shift_invariant: ClassVar[bool] = True

    num_buckets: Annotated[int, Ge(4), MultipleOf(2)] = 32  #: of distances, each with a bias
    max_distance: PositiveInt = 128  #: distances from here on share the last bucket
    multiplier: PositiveFloat = 8.0  #: of the table; 1 as in T5, which learns more slowly

    def check(self, context: PositionContext) -> None:
        if self.max_distance <= self.num_buckets // 2:
            raise UserError(
                f"max_distance={self.max_distance}: must be more than half of num_buckets="
                f"{self.num_buckets}, since the first half hold one distance each"
            )
