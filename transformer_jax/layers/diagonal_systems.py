"""The parameters of diagonal state space models, which S4D and H3 share and S4 extends."""

import math
from dataclasses import dataclass
from functools import partial
from typing import Annotated, Any, ClassVar, Literal

import jax.numpy as jnp
from annotated_types import Ge, MultipleOf
from flax import linen as nn
from jax import Array
from pydantic import NonNegativeInt, PositiveFloat

from transformer_jax.errors import UserError
from transformer_jax.layers.initializers import (
    Values,
    along_last_axis,
    hippo_legs,
    log_uniform,
)
from transformer_jax.layers.parameters import Layer
from transformer_jax.ops.diagonal_ssm import (
    ComplexState,
    DiagonalSSM,
    discretize,
    ssm_kernel,
    ssm_step,
)


@dataclass(frozen=True, kw_only=True)
class SystemOptions:
    """What the options of S4, S4D and H3 have in common."""

    knows_order: ClassVar[bool] = True  # as every mixer with a filter or a recurrence

    state_size: Annotated[int, Ge(2), MultipleOf(2)] = 64
    #: states of a system, in conjugate pairs
    dt_min: PositiveFloat = 0.001  #: shortest initial step: a system remembers about 1 / dt
    dt_max: PositiveFloat = 0.1  #: the longest
    direct_length: NonNegativeInt = 64  #: sequences up to this length are convolved without FFT

    def check(self, context: Any, hooks: frozenset[str]) -> None:
        """Raises UserError if the steps have no range."""
        if self.dt_min > self.dt_max:
            raise UserError(f"dt_min={self.dt_min} is larger than dt_max={self.dt_max}")

    def initial_frequency(self) -> Values:
        """Im A of each state, here of HiPPO-LegS without its low-rank part."""
        frequency_N, _ = hippo_legs(self.state_size)
        return lambda n: jnp.asarray(frequency_N, n.dtype)


@dataclass(frozen=True, kw_only=True)
class DiagonalOptions(SystemOptions):
    """What the options of S4D and H3 have in common."""

    init: Literal["lin", "inv", "legs"] = "lin"
    #: initial Im A of S4D-Lin, S4D-Inv or S4D-LegS; legs: HiPPO-LegS without its low-rank part

    def initial_frequency(self) -> Values:
        """Im A of S4D-Lin, S4D-Inv or S4D-LegS (Gu et al. 2022, arXiv:2206.11893)."""
        states = self.state_size
        if self.init == "lin":
            return lambda n: jnp.pi * n
        if self.init == "inv":
            return lambda n: states / jnp.pi * (states / (2.0 * n + 1.0) - 1.0)
        return super().initial_frequency()


class DiagonalSystems(Layer):
    """One diagonal system a channel, with initial Re A_n = -1/2.

    Attributes:
        channels: how many.
        options: size of the state, range of the initial steps and initial Im A.
        directions: 2 gives each a second output map C, for what follows.
        axis: logical name of the channels.
        param_dtype: of parameters.
    """

    channels: int
    options: SystemOptions
    directions: int
    axis: str
    param_dtype: str

    def setup(self) -> None:
        shape, axes = (self.channels, self.options.state_size // 2), (self.axis, "state")
        steps = partial(log_uniform, self.options.dt_min, self.options.dt_max)
        self.log_dt = self.weight("log_dt", steps, shape[:1], axes[:1])
        half = nn.initializers.constant(math.log(0.5))
        self.log_decay = self.weight("log_decay", half, shape, axes)
        initial_frequency = partial(along_last_axis, self.options.initial_frequency())
        self.frequency = self.weight("frequency", initial_frequency, shape, axes)
        normal = nn.initializers.normal(0.5**0.5)
        maps = (self.directions, *shape, 2)
        self.output_map = self.weight("output_map", normal, maps, (None, *axes, None))

    def system(self, direction: int = 0) -> DiagonalSSM:
        """The discrete systems that look at the past (0) or at what follows (1)."""
        parts = (self.log_dt, self.log_decay, self.frequency, self.output_map[direction])
        return discretize(*(x.astype(jnp.float32) for x in parts))

    def kernels(self, length: int) -> list[Array]:
        """One filter [L, channels] for each direction."""
        return [ssm_kernel(self.system(d), length) for d in range(self.directions)]

    def step(self, u: Array, state: ComplexState) -> tuple[Array, ComplexState]:
        """One step of the systems that look at the past; see `ssm_step`."""
        return ssm_step(self.system(), u, state)
