"""Sinusoidal positions (Vaswani et al. 2017, arXiv:1706.03762, section 3.5), added to embeddings.

In three forms, with h = D/2 and i = 0 ... h - 1:

    interleaved     PE(p, 2i) = sin(p / 10000^(i/h)),    PE(p, 2i + 1) = cos(p / 10000^(i/h))
    halves          PE(p, i) = sin(p / 10000^(i/h)),     PE(p, h + i) = cos(p / 10000^(i/h))
    tensor2tensor   PE(p, i) = sin(p / 10000^(i/(h-1))), PE(p, h + i) = cos(p / 10000^(i/(h-1)))

The first is the paper's, the second that of Marian's models in Transformers, the third that of
Tensor2Tensor, of Marian itself, and of fairseq (M2M100, NLLB), where the first token has p = 2.
Defined for every position, but quality beyond the trained length is not promised.
"""

from dataclasses import dataclass
from typing import ClassVar, Literal

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from pydantic import NonNegativeInt

from transformer_jax.errors import UserError
from transformer_jax.positions.base import Position, PositionConfig, PositionContext

Form = Literal["interleaved", "halves", "tensor2tensor"]


def sinusoids(positions_L: Array, features: int, form: Form = "interleaved") -> Array:
    """[L, features] float32; `features` is even except if interleaved."""
    half = (features + 1) // 2
    steps = half - 1 if form == "tensor2tensor" else features / 2
    rates_1R = (10000.0 ** (-np.arange(half) / steps)).astype(np.float32)[None]
    angles_LR = positions_L[:, None].astype(jnp.float32) * rates_1R
    if form != "interleaved":
        return jnp.concatenate([jnp.sin(angles_LR), jnp.cos(angles_LR)], axis=-1)
    pairs_LR2 = jnp.stack([jnp.sin(angles_LR), jnp.cos(angles_LR)], axis=-1)
    return pairs_LR2.reshape(positions_L.shape[0], -1)[:, :features]


class AddedSinusoids(Position):
    """Adds the sinusoids to the word embeddings."""

    config: "Sinusoidal"

    def embed(self, x: Array, positions: Array) -> Array:
        """x [..., L, D] + PE(first + positions [L])."""
        places = positions + self.config.first
        added_LD = sinusoids(places, self.context.d_model, self.config.form).astype(x.dtype)
        return x + jax.lax.broadcast_to_rank(added_LD, x.ndim)


@dataclass(frozen=True)
class Sinusoidal(PositionConfig):
    """Options of sinusoidal positions."""

    module: ClassVar[type[Position]] = AddedSinusoids

    form: Form = "interleaved"  #: where sines and cosines are, and their frequencies
    first: NonNegativeInt = 0  #: p of the first token

    def check(self, context: PositionContext) -> None:
        if self.form != "interleaved" and (context.d_model % 2 or context.d_model < 4):
            raise UserError(
                f"form={self.form} has as many sines as cosines: model.d_model must be even and at "
                f"least 4, got {context.d_model}"
            )
