"""S4D, the structured state space model in diagonal form (Gu et al. 2022,
arXiv:2206.11893; S4: arXiv:2111.00396).

    s = SSM(u) + skip u         one linear system of N states a channel (ops.diagonal_ssm)
    a, b = W gelu(s),    y = a sigmoid(b)

The systems do not depend on the tokens, so over a whole sequence each is a convolution
with a fixed filter: O(L log L) in time by FFT, and O(1) for a decoding step, which keeps
N complex numbers a channel. In the encoder each channel has two filters, one over what
came before and one over what follows.

It weighs by distance alone, never by content. Past `direct_length` positions the FFT's
rounding (about 1e-7 of the largest term) also reaches earlier outputs; see
`ops.convolutions`. XLA's CPU backend computes its transforms at a small fraction of the
speed of matrix products.
"""

from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
from flax import linen as nn

from transformer_jax.layers.diagonal_systems import (
    ComplexState,
    DiagonalSystems,
)
from transformer_jax.layers.projections import Dense
from transformer_jax.mixers.base import Mixer, MixerContext
from transformer_jax.mixers.checks import refuse_weight_dropout, require_diagonal_system
from transformer_jax.ops.convolutions import long_convolution
from transformer_jax.ops.diagonal_ssm import ssm_step


@dataclass(frozen=True)
class S4DOptions:
    """S4D's sizes."""

    state_size: int = 64  #: states a channel, in conjugate pairs; even
    dt_min: float = 0.001  #: the shortest initial step: one channel remembers about 1 / dt
    dt_max: float = 0.1  #: the longest
    direct_length: int = 64  #: sequences up to this length are convolved without FFT


class S4D(Mixer):
    """Convolution with the systems' filters, in either role."""

    Options = S4DOptions
    knows_order = True

    @classmethod
    def check(cls, context: MixerContext, options: Any, *, hooks: frozenset[str], key: str) -> None:
        """See `Mixer`."""
        del hooks
        refuse_weight_dropout(context, key)
        require_diagonal_system(options, key)

    def setup(self) -> None:
        c, o = self.context, self.options
        directions = 1 if c.causal else 2
        self.systems = DiagonalSystems(
            c.d_model, o.state_size, o.dt_min, o.dt_max, directions, "embed", c.dtypes
        )
        self.skip = self.param(
            "skip",
            nn.with_logical_partitioning(nn.initializers.normal(1.0), ("embed",)),
            (c.d_model,),
            c.dtypes["param_dtype"],
        )
        self.out = Dense(c.d_model, 2 * c.d_model, ("embed", "mlp"), **c.dtypes)

    def __call__(self, x_BLD: jax.Array, mask_BL: jax.Array) -> jax.Array:
        """See `Mixer`."""
        x_BLD = jnp.where(mask_BL[..., None], x_BLD, 0)
        kernels = self.systems.kernels(x_BLD.shape[1])
        y_BLD = long_convolution(x_BLD, *kernels, direct_length=self.options.direct_length)
        return self._gated(y_BLD, x_BLD)

    def init_state(self, batch: int, max_length: int) -> ComplexState:
        """An empty past; the same size whatever `max_length`."""
        del max_length
        empty = jnp.zeros((batch, self.context.d_model, self.options.state_size // 2), jnp.float32)
        return ComplexState(real=empty, imag=empty)

    def step(
        self, x_BD: jax.Array, state: ComplexState, position: jax.Array
    ) -> tuple[jax.Array, ComplexState]:
        """One turn of the recurrence."""
        del position
        y_BD, real, imag = ssm_step(self.systems.system(), x_BD, state.real, state.imag)
        return self._gated(y_BD, x_BD), ComplexState(real=real, imag=imag)

    def _gated(self, y: jax.Array, x: jax.Array) -> jax.Array:
        y = y + self.skip * x.astype(jnp.float32)
        value, gate = jnp.split(self.out(nn.gelu(y).astype(x.dtype)), 2, axis=-1)
        return value * nn.sigmoid(gate)
