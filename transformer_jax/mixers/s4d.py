"""S4D, the structured state space model in diagonal form (Gu et al. 2022,
arXiv:2206.11893; S4: arXiv:2111.00396).

    s = SSM(u) + skip u         one linear system of N states a channel (ops.diagonal_ssm)
    a, b = W gelu(s),    y = a sigmoid(b)

The systems do not depend on the tokens, so over a whole sequence each is a convolution
with a fixed filter: O(L log L) in time by FFT, and O(1) for a decoding step, which keeps
N complex numbers a channel. In the encoder each channel has two filters, one over what
came before and one over what follows.

The weight of a token depends on its distance alone, never on its content. Beyond
`direct_length` positions the FFT's rounding (about 1e-7 of the largest term) also reaches
earlier outputs; see `ops.convolutions`. XLA's CPU backend computes FFTs at a small fraction
of the speed of matrix products.
"""

from dataclasses import dataclass
from typing import ClassVar

import jax
import jax.numpy as jnp
from flax import linen as nn
from jax import Array

from transformer_jax.layers.diagonal_systems import DiagonalOptions, DiagonalSystems
from transformer_jax.layers.projections import Dense
from transformer_jax.mixers.base import Mixer, MixerConfig
from transformer_jax.ops.convolutions import long_convolution
from transformer_jax.ops.diagonal_ssm import ComplexState, empty_state


class S4DMixer(Mixer):
    """Convolution with the systems' filters, in either role; S4 has it with other systems."""

    systems_class: ClassVar[type[DiagonalSystems]] = DiagonalSystems

    def setup(self) -> None:
        c, directions = self.context, 1 if self.context.causal else 2
        self.systems = self.systems_class(
            c.d_model, self.config, directions, "embed", c.param_dtype
        )
        self.skip = self.weight("skip", nn.initializers.normal(1.0), (c.d_model,), ("embed",))
        self.out = Dense(c.d_model, 2 * c.d_model, ("embed", "mlp"), **c.dtypes)

    def __call__(self, x_BLD: Array, mask_BL: Array) -> Array:
        x_BLD = jnp.where(mask_BL[..., None], x_BLD, 0)
        kernels = self.systems.kernels(x_BLD.shape[1])
        y_BLD = long_convolution(x_BLD, *kernels, direct_length=self.config.direct_length)
        return self._gated(y_BLD, x_BLD)

    def init_state(self, batch: int, max_length: int) -> ComplexState:
        """An empty past; the same size whatever `max_length`."""
        return empty_state((batch, self.context.d_model, self.config.state_size // 2))

    def step(self, x_BD: Array, state: ComplexState, position: Array) -> tuple[Array, ComplexState]:
        """One step of the recurrence."""
        y_BD, state = self.systems.step(x_BD, state)
        return self._gated(y_BD, x_BD), state

    def _gated(self, y: Array, x: Array) -> Array:
        y = y + jax.lax.broadcast_to_rank(self.skip, x.ndim) * x.astype(jnp.float32)
        value, gate = jnp.split(self.out(nn.gelu(y).astype(x.dtype)), 2, axis=-1)
        return value * nn.sigmoid(gate)


@dataclass(frozen=True)
class S4D(DiagonalOptions, MixerConfig):
    """S4D's sizes."""

    module: ClassVar[type[Mixer]] = S4DMixer
