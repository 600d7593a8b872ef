"""The parameters of diagonal state space models, which S4D and H3 share."""

import math

import jax
import jax.numpy as jnp
from flax import linen as nn
from flax import struct

from transformer_jax.layers.initializers import along_last_axis, log_uniform
from transformer_jax.ops.diagonal_ssm import DiagonalSSM, discretize, ssm_kernel


@struct.dataclass
class ComplexState:
    """Real and imaginary part of a diagonal system's state, [B, ..., N] float32 each."""

    real: jax.Array
    imag: jax.Array


class DiagonalSystems(nn.Module):
    """One diagonal system a channel, with S4D-Lin's initial A_n = -1/2 + i pi n.

    Attributes:
        channels: how many.
        state_size: states of each, counting both of a conjugate pair.
        directions: 2 gives each a second output map C for what follows.
        axis: logical name of the channels.
    """

    channels: int
    state_size: int
    dt_min: float
    dt_max: float
    directions: int
    axis: str
    dtypes: dict

    def setup(self) -> None:
        named, dtype = nn.with_logical_partitioning, self.dtypes["param_dtype"]
        shape = (self.channels, self.state_size // 2)
        self.log_dt = self.param(
            "log_dt", named(log_uniform(self.dt_min, self.dt_max), (self.axis,)), shape[:1], dtype
        )
        half = nn.initializers.constant(math.log(0.5))
        self.log_decay = self.param("log_decay", named(half, (self.axis, "state")), shape, dtype)
        self.frequency = self.param(
            "frequency",
            named(along_last_axis(lambda n: jnp.pi * n), (self.axis, "state")),
            shape,
            dtype,
        )
        self.output_map = self.param(
            "output_map",
            named(nn.initializers.normal(0.5**0.5), (None, self.axis, "state", None)),
            (self.directions, *shape, 2),
            dtype,
        )

    def system(self, direction: int = 0) -> DiagonalSSM:
        """The discrete systems that look at the past (0) or at what follows (1)."""
        parts = (self.log_dt, self.log_decay, self.frequency, self.output_map[direction])
        return discretize(*(x.astype(jnp.float32) for x in parts))

    def kernels(self, length: int) -> list[jax.Array]:
        """One filter [L, channels] for each direction."""
        return [ssm_kernel(self.system(d), length) for d in range(self.directions)]
