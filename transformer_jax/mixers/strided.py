"""Strided attention (Sparse Transformer: Child, Gray, Radford, Sutskever 2019).

arXiv:1904.10509, section 4.2, the strided pattern with merged heads (equation 7): with
stride l, a query at i reads the union of

    A1 = { j : |i - j| <= l }              the neighbours
    A2 = { j : (i - j) mod l = 0 }         every l-th token

(in the decoder only j <= i), so that any token reaches any other in two layers. Time is
O(L (l + L / l)), which is O(L sqrt(L)) for the default stride of sqrt(max_length), and
memory O(L): A1 is a blocked window, A2 one block of L / l tokens for each of the l
residue classes, and one softmax joins the two. A decoding step reads l + L / l of the
keys and values kept, which are those of every token so far.

The paper's `fixed` pattern, meant for text, is not here; nor is a split of the patterns
over heads or layers.
"""

import math
from dataclasses import dataclass
from typing import ClassVar

import jax.numpy as jnp
from jax import Array
from pydantic import PositiveInt

from transformer_jax.mixers.base import Mixer
from transformer_jax.mixers.sparse_attention import CachedSparseAttention, SparseConfig
from transformer_jax.ops.attention import QKV, Hooks
from transformer_jax.ops.sparse_attention import strided_attention


class StridedAttention(CachedSparseAttention):
    """Each token reads its neighbours and every l-th token."""

    config: "Strided"

    @property
    def stride(self) -> int:
        return self.config.stride_for(self.context.max_length)

    def attend(self, qkv: QKV, mask_BL: Array, hooks: Hooks) -> Array:
        return strided_attention(
            qkv, mask_BL, hooks, stride=self.stride, causal=self.context.causal
        )

    def reads(self, position: Array, room: int) -> tuple[Array, Array]:
        near = jnp.arange(min(self.stride, room - 1) + 1)
        far = jnp.arange(2 * self.stride, room, self.stride)
        at_M = position - jnp.concatenate([near, far])
        return at_M, at_M >= 0


@dataclass(frozen=True)
class Strided(SparseConfig):
    """A stride of 1, or of at least the sequence's length, is full attention."""

    module: ClassVar[type[Mixer]] = StridedAttention

    stride: PositiveInt | None = None  #: l; None = the square root of model.max_length, rounded up

    def stride_for(self, max_length: int) -> int:
        """l in a model of this `max_length`."""
        return self.stride or math.isqrt(max_length - 1) + 1
