"""Linformer (Wang, Li, Khabsa, Fang & Ma 2020, arXiv:2006.04768).

    head_h = softmax(Q_h (E_h K_h)^T / sqrt(head_dim)) (F_h V_h)

with learned E, F of [R, max_length] that project the *length* of keys and values down
to R rows. O(L R) time and memory. A padded token is set to zero before the projection, so
the amount of padding has no effect.

Unlike the paper, E and F start equal up to a little noise: position m is in row m mod R of
both. So row r of the keys represents the same tokens as row r of the values from the first
step on, and a model learns to look things up in far fewer steps than with two independent
random matrices.

It is defined up to max_length, as its parameters are. A position beyond those seen in
training has columns of E and F that were never trained. All R rows are attended to, even
if a short sentence fills few of them. It cannot be causal: each row of E K mixes all
positions.
"""

from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import jax
import jax.numpy as jnp
from jax import Array
from pydantic import PositiveInt

from transformer_jax.layers.dropout import Dropout, DropoutRate
from transformer_jax.mixers.base import (
    CrossMixer,
    CrossMixerConfig,
    Mixer,
    MixerConfig,
    MixerModule,
    Refusals,
    State,
)
from transformer_jax.mixers.heads import HeadProjections
from transformer_jax.ops.attention import Hooks, dot_product_attention
from transformer_jax.ops.sums import einsum_32


@dataclass(frozen=True)
class LinformerOptions:
    """What self- and cross-attention through a projected length have in common."""

    rank: PositiveInt = 64  #: R, rows that the length is projected to; at most max_length are used
    sharing: Literal["none", "heads", "key_value"] = "heads"
    #: "heads": one E and one F for all heads; "key_value": one matrix for both as well
    dropout_rate: DropoutRate = 0.0  #: of the attention weights


def _folded(key: Array, shape: tuple[int, ...], dtype: Any) -> Array:
    """[H, max_length, R]: position m in row m mod R, and noise that tells m from m + R."""
    _, max_length, rank = shape
    rows_MR = jnp.arange(max_length)[:, None] % rank == jnp.arange(rank)[None]
    # Keeps the size of the keys: max_length / R terms in a row, and max_length of noise.
    fold = rows_MR * (rank / max_length) ** 0.5
    return (fold[None] + 0.1 * max_length**-0.5 * jax.random.normal(key, shape)).astype(dtype)


class LengthProjection(MixerModule):
    """E and F: keys and values [B, M, H, K] -> [B, R, H, K]."""

    config: LinformerOptions

    def setup(self) -> None:
        c, sharing = self.context, self.config.sharing
        heads = c.num_heads if sharing == "none" else 1
        shape = (heads, c.max_length, min(self.config.rank, c.max_length))
        axes = ("heads", None, None)
        self.key_projection = self.weight("key_projection", _folded, shape, axes)
        self.value_projection = self.key_projection
        if sharing != "key_value":
            self.value_projection = self.weight("value_projection", _folded, shape, axes)

    def __call__(self, k_BMHK: Array, v_BMHK: Array, mask_BM: Array) -> tuple[Array, Array]:
        """Projects the real keys and values.

        Raises:
            UserError: more positions than max_length.
        """
        self.context.check_length(k_BMHK.shape[1], "linformer", ", or use performer")
        real_BM11 = mask_BM[..., None, None]
        return (
            self._project(self.key_projection, jnp.where(real_BM11, k_BMHK, 0)),
            self._project(self.value_projection, jnp.where(real_BM11, v_BMHK, 0)),
        )

    def _project(self, matrix: Array, x_BMHK: Array) -> Array:
        length, heads = x_BMHK.shape[1:3]
        operand = self.context.matmul_dtype
        # [H or 1, max_length, R], of which the first M rows are used
        matrix_HMR = jnp.broadcast_to(matrix[:, :length], (heads, length, matrix.shape[-1]))
        operands = matrix_HMR.astype(operand), x_BMHK.astype(operand)
        y_BRHK = einsum_32("hmr,bmhk->brhk", *operands)
        return y_BRHK.astype(x_BMHK.dtype)


class ProjectedAttention(MixerModule):
    """Projections and attention to R rows, for self- and cross-attention."""

    config: LinformerOptions

    def setup(self) -> None:
        self.heads = HeadProjections(self.context)
        self.length_projection = LengthProjection(self.config, self.context)
        self.weight_dropout = Dropout(self.config.dropout_rate)

    def attend(self, x_BTD: Array, k_BRHK: Array, v_BRHK: Array) -> Array:
        """[B, T, D]; without a mask, because padding is in none of the R rows."""
        qkv, everywhere = (self.heads.queries(x_BTD), k_BRHK, v_BRHK), jnp.ones((1, 1, 1, 1), bool)
        hooks = Hooks(None, self.config.dropout_rate, self.weight_dropout.key())
        y_BTHK = dot_product_attention(qkv, everywhere, hooks=hooks)
        return self.heads.join(y_BTHK)


class LinformerAttention(ProjectedAttention, Mixer):
    """Bidirectional self-attention through a projected length."""

    config: "Linformer"

    def __call__(self, x_BLD: Array, mask_BL: Array) -> Array:
        k_BLHK, v_BLHK = self.heads.keys_values(x_BLD)
        return self.attend(x_BLD, *self.length_projection(k_BLHK, v_BLHK, mask_BL))


@dataclass(frozen=True)
class Linformer(LinformerOptions, MixerConfig):
    """Options of self-attention through a projected length."""

    module: ClassVar[type[Mixer]] = LinformerAttention
    refuses: ClassVar[Refusals] = {
        "decoder": "its length projection mixes all positions, the future too, and cannot be "
        "masked; use linear or performer, which are linear in the length and causal"
    }
    knows_order: ClassVar[bool] = True  # each position has its own column of E and F


class LinformerCrossAttention(ProjectedAttention, CrossMixer):
    """Reads R rows of projected memory, whatever the memory's length."""

    config: "LinformerCross"

    def project(self, memory_BMD: Array, mask_BM: Array) -> State:
        """E K and F V of the memory, [B, R, H, K] each."""
        k_BMHK, v_BMHK = self.heads.keys_values(memory_BMD)
        return self.length_projection(k_BMHK, v_BMHK, mask_BM)

    def read(self, x_BTD: Array, projected: State) -> Array:
        return self.attend(x_BTD, *projected)


@dataclass(frozen=True)
class LinformerCross(LinformerOptions, CrossMixerConfig):
    """Options of reading the memory through a projected length."""

    module: ClassVar[type[CrossMixer]] = LinformerCrossAttention
