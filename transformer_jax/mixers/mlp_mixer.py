"""MLP-Mixer's token mixing (Tolstikhin et al. 2021, arXiv:2105.01601, eq. 1).

    encoder:  y = W2 gelu(W1 x + b1) + b2,   W1: [F, max_length], W2: [max_length, F]
    decoder:  y = W2 gelu(W1 x + b1) + b2,   W1, W2: [max_length, max_length], both
              lower triangular

where the matrices act along the length, the same for every channel; the block's
feed-forward layer mixes the channels. There is no attention: the weights do not depend on
the tokens. A padded token is set to zero before the product, so it has no effect.

The encoder's cost is O(L F), linear in L with F fixed. The decoder is *quadratic*: to be
causal, a hidden unit must have a position and see only the tokens up to it. There is one
for each position, so W1 and W2 take O(L^2) time and parameters. A decoding step is O(L)
and keeps the inputs and the hidden units so far. Defined up to max_length; the rows of
positions never seen in training were never trained.
"""

from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

import jax
import jax.numpy as jnp
from flax import linen as nn
from jax import Array
from pydantic import PositiveInt

from transformer_jax.mixers.base import Mixer, MixerConfig, MixerContext
from transformer_jax.ops.matmul import matmul
from transformer_jax.ops.sequences import write_token


class MixedSoFar(NamedTuple):
    """What the decoder keeps of the tokens so far, [B, max_length, D] each.

    Attributes:
        input: the inputs of W1.
        hidden: the inputs of W2, final once they are written.
    """

    input: Array
    hidden: Array


class TokenMlp(Mixer):
    """An MLP along the length, lower triangular in the decoder."""

    config: "MlpMixer"

    def setup(self) -> None:
        c = self.context
        hidden = c.max_length if c.causal else self.config.hidden
        axis = None if c.causal else "mlp"
        init = _triangular_normal if c.causal else nn.initializers.xavier_uniform()
        # [in, out], as in `Dense`; kept as parameters to be cut to the batch's length.
        self.up = self.weight("up", init, (c.max_length, hidden), (None, axis))
        self.up_bias = self.weight("up_bias", nn.initializers.zeros, (hidden,), (axis,))
        self.down = self.weight("down", init, (hidden, c.max_length), (axis, None))
        self.down_bias = self.weight("down_bias", nn.initializers.zeros, (c.max_length,), (None,))

    def __call__(self, x_BLD: Array, mask_BL: Array) -> Array:
        """See `Mixer`.

        Raises:
            UserError: more positions than max_length.
        """
        c, length = self.context, x_BLD.shape[1]
        c.check_length(length, "mlp_mixer")
        x_BDL = jnp.swapaxes(jnp.where(mask_BL[..., None], x_BLD, 0), 1, 2)
        width = length if c.causal else self.config.hidden
        up, down = self.up[:length, :width], self.down[:width, :length]
        if c.causal:
            up, down = jnp.triu(up), jnp.triu(down)  # [in, out]: an output sees inputs up to it
        h_BDF = jax.nn.gelu(matmul(x_BDL, up, c.matmul_dtype) + self.up_bias[None, None, :width])
        y_BDL = matmul(h_BDF, down, c.matmul_dtype) + self.down_bias[None, None, :length]
        return jnp.swapaxes(y_BDL, 1, 2).astype(x_BLD.dtype)

    def init_state(self, batch: int, max_length: int) -> MixedSoFar:
        """Room for `max_length` tokens.

        Raises:
            UserError: more than the model is built for.
        """
        self.context.check_length(max_length, "mlp_mixer")
        empty = jnp.zeros((batch, max_length, self.context.d_model), self.context.dtype)
        return MixedSoFar(empty, empty)

    def step(self, x_BD: Array, state: MixedSoFar, position: Array) -> tuple[Array, MixedSoFar]:
        """One row of each matrix, against the inputs and hidden units so far."""
        inputs_BLD = write_token(state.input, x_BD, position)
        h_BD = jax.nn.gelu(self._row(self.up, self.up_bias, inputs_BLD, position))
        hidden_BLD = write_token(state.hidden, h_BD, position)
        y_BD = self._row(self.down, self.down_bias, hidden_BLD, position)
        return y_BD.astype(x_BD.dtype), MixedSoFar(inputs_BLD, hidden_BLD)

    def _row(self, kernel_PP: Array, bias_P: Array, x_BLD: Array, position: Array) -> Array:
        """Output `position` of a triangular product; the inputs after it are still zero."""
        column_L = jax.lax.dynamic_index_in_dim(
            kernel_PP[: x_BLD.shape[1]], position, axis=1, keepdims=False
        )
        column_L = jnp.where(jnp.arange(x_BLD.shape[1]) <= position, column_L, 0)
        y_BD1 = matmul(jnp.swapaxes(x_BLD, 1, 2), column_L[:, None], self.context.matmul_dtype)
        return y_BD1[..., 0] + jax.lax.dynamic_index_in_dim(bias_P, position, keepdims=False)


@dataclass(frozen=True)
class MlpMixer(MixerConfig):
    """Options of token mixing."""

    module: ClassVar[type[Mixer]] = TokenMlp
    quadratic: ClassVar[frozenset[str]] = frozenset({"decoder"})
    knows_order: ClassVar[bool] = True

    hidden: PositiveInt = 256  #: F, hidden units of the encoder's token MLP; encoder only

    def check(self, context: MixerContext, hooks: frozenset[str]) -> None:
        if context.causal:
            self.refuse_unused(
                "hidden", "a decoder has model.max_length hidden units; set it in model.encoder"
            )


def _triangular_normal(key: Array, shape: tuple[int, ...], dtype: Any) -> Array:
    """[in, out]: column t has t + 1 inputs, whose weights have the variance 1 / (t + 1)."""
    scale = jax.lax.rsqrt(jnp.arange(1.0, shape[1] + 1.0))
    return jnp.triu(jax.random.normal(key, shape) * scale[None]).astype(dtype)
