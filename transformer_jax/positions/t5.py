"""T5's relative bias (Raffel et al. 2020, arXiv:1910.10683, section 2.1).

    score_h(i, j) += table[bucket(j - i), h]

Distances fall into buckets: one each for the short ones, logarithmically wider ones up
to `max_distance`, and the last for all beyond. A bidirectional stack spends half the
buckets on each direction; a causal one has no use for the future's. All layers of a
stack share the table, as in T5. Every length is defined, but beyond `max_distance`
distances are not told apart. Scores keep their 1 / sqrt(head_dim), which T5 leaves out.
"""

import math
from dataclasses import dataclass
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
from flax import linen as nn

from transformer_jax.errors import UserError
from transformer_jax.positions.base import Position


@dataclass(frozen=True)
class T5Options:
    """Options of T5's relative bias."""

    num_buckets: int = 32
    max_distance: int = 128  #: distances from here on share the last bucket


def relative_buckets(
    distances: jax.Array, *, bidirectional: bool, num_buckets: int, max_distance: int
) -> jax.Array:
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


class T5Relative(Position):
    """Adds a learned number for each head and distance bucket to the scores."""

    Options: ClassVar[Any] = T5Options
    shift_invariant: ClassVar[bool] = True
    options: T5Options = T5Options()

    @classmethod
    def check(cls, options: Any, key: str, *, d_model: int, head_dim: int) -> None:
        """See `Position`."""
        if options.num_buckets < 4 or options.num_buckets % 2:
            raise UserError(f"{key}.num_buckets={options.num_buckets}: must be even and at least 4")
        if options.max_distance <= options.num_buckets // 2:
            raise UserError(
                f"{key}.max_distance={options.max_distance}: must be more than half of "
                f"num_buckets={options.num_buckets}, since the first half hold one distance each"
            )

    def setup(self) -> None:
        self.table = self.param(
            "table",
            nn.with_logical_partitioning(
                nn.initializers.variance_scaling(1.0, "fan_avg", "uniform"), ("buckets", "heads")
            ),
            (self.options.num_buckets, self.num_heads),
            self.param_dtype,
        )

    def bias(self, q_positions: jax.Array, k_positions: jax.Array) -> jax.Array:
        """[H, T, M] float32."""
        buckets_TM = relative_buckets(
            k_positions[None, :] - q_positions[:, None],
            bidirectional=not self.causal,
            num_buckets=self.options.num_buckets,
            max_distance=self.options.max_distance,
        )
        return jnp.moveaxis(jnp.take(self.table.astype(jnp.float32), buckets_TM, axis=0), -1, 0)
