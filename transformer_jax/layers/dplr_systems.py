"""The parameters of diagonal plus low rank state space models, for S4."""

import jax.numpy as jnp
import numpy as np
from flax import linen as nn
from jax import Array

from transformer_jax.layers.diagonal_systems import DiagonalSystems
from transformer_jax.layers.initializers import hippo_legs
from transformer_jax.ops.diagonal_ssm import ComplexState
from transformer_jax.ops.dplr_ssm import DPLR, dplr_kernels, dplr_step, scaled_system


class DPLRSystems(DiagonalSystems):
    """One system of A = Lambda - P P* a channel, initially HiPPO-LegS; attributes as there."""

    def setup(self) -> None:
        super().setup()
        _, low_rank_N = hippo_legs(self.options.state_size)
        initial_N2 = np.stack([low_rank_N, np.zeros_like(low_rank_N)], axis=-1)
        shape = (self.channels, *initial_N2.shape)
        axes = (self.axis, "state", None)
        low_rank = nn.initializers.constant(initial_N2)
        self.low_rank = self.weight("low_rank", low_rank, shape, axes)
        input_map = nn.initializers.constant(2**0.5 * initial_N2)
        self.input_map = self.weight("input_map", input_map, shape, axes)

    def scaled(self) -> DPLR:
        """The systems in units of half a step, with an output for each direction."""
        parts = (self.log_dt, self.log_decay, self.frequency)
        maps = (self.low_rank, self.input_map, self.output_map)
        return scaled_system([x.astype(jnp.float32) for x in parts + maps])

    def kernels(self, length: int) -> list[Array]:
        return dplr_kernels(self.scaled(), length, direct_length=self.options.direct_length)

    def step(self, u: Array, state: ComplexState) -> tuple[Array, ComplexState]:
        return dplr_step(self.scaled(), u, state)
