"""The simpler simple recurrent unit (Kim et al. 2019, "From Research to Production and Back").

    f_t = sigmoid(W_f x_t + b)
    c_t = f_t * c_(t-1) + (1 - f_t) * W x_t      c_0 = 0
    y_t = relu(c_t)

As in Marian (`rnn/cells.h`), where it takes the place of the decoder's self-attention in small
models that must decode fast. O(L) time and memory, a state of D numbers, and two matrices where
attention has four. Each feature keeps or replaces its one number by the token alone, so it cannot
look up an earlier token by its content.

It reads forwards only; the encoder runs it in both directions (`both_ways`).
"""

from dataclasses import dataclass
from typing import ClassVar

import jax
import jax.numpy as jnp
from jax import Array

from transformer_jax.layers.projections import Dense
from transformer_jax.mixers.base import Mixer
from transformer_jax.mixers.both_ways import BothWaysConfig
from transformer_jax.ops.scans import states_before


class SSRUMixer(Mixer):
    """The causal mixer, without position hooks or attention weights."""

    config: "SSRU"

    def setup(self) -> None:
        d_model = self.context.d_model
        # What enters the sums is not rounded to the dtype of activations.
        dtypes = self.context.dtypes | {"dtype": "float32"}
        axes = ("embed", "mlp")
        self.into = Dense(d_model, d_model, axes, use_bias=False, **dtypes)
        self.forget = Dense(d_model, d_model, axes, **dtypes)

    def __call__(self, x_BLD: Array, mask_BL: Array) -> Array:
        # Without the mask: padding follows every real token, so it is never read.
        kept_BLD, written_BLD = self._update(x_BLD)
        c_BLD = kept_BLD * states_before(kept_BLD, written_BLD) + written_BLD
        return jax.nn.relu(c_BLD).astype(x_BLD.dtype)

    def init_state(self, batch: int, max_length: int) -> Array:
        """c [B, D], float32 whatever the model computes in."""
        return jnp.zeros((batch, self.context.d_model), jnp.float32)

    def step(self, x_BD: Array, state: Array, position: Array) -> tuple[Array, Array]:
        """One step of the recurrence."""
        kept_BD, written_BD = self._update(x_BD)
        c_BD = kept_BD * state + written_BD
        return jax.nn.relu(c_BD).astype(x_BD.dtype), c_BD

    def _update(self, x: Array) -> tuple[Array, Array]:
        """f and (1 - f) W x, [..., D] float32."""
        forget = self.forget(x)
        # sigmoid(-x) is 1 - sigmoid(x) without the loss of digits where f is near 1.
        return jax.nn.sigmoid(forget), jax.nn.sigmoid(-forget) * self.into(x)


@dataclass(frozen=True)
class SSRU(BothWaysConfig):
    """It has no sizes of its own."""

    module: ClassVar[type[Mixer]] = SSRUMixer
