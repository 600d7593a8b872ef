"""A sliding window with global tokens (Longformer: Beltagy, Peters, Cohan 2020).

arXiv:2004.05150, section 3.1. The first g tokens of the sequence are global, and
symmetrically so: every token reads them, and they read every token,

    i >= g:  softmax over {j < g} and {j = i + d m, |m| <= w} of  q_i k_j / sqrt(head_dim)
    i < g:   softmax over all j of                               qg_i kg_j / sqrt(head_dim)

where qg, kg and vg come from projections of their own, as in the paper, or from the same
ones (`share_projections`). O(L (w + g)) time and memory.

The paper chooses the global tokens for each task: a classification token, or the words of
a question. Translation has neither, so here they are the first tokens of the source. The
mixer is for the encoder only, because a global token reads what follows it.
"""

from dataclasses import dataclass
from typing import ClassVar

import jax.numpy as jnp
from jax import Array
from pydantic import PositiveInt

from transformer_jax.mixers.base import Mixer, Refusals
from transformer_jax.mixers.heads import HeadProjections
from transformer_jax.mixers.sparse_attention import SparseAttention, SparseConfig
from transformer_jax.ops.attention import Hooks
from transformer_jax.ops.sparse_attention import longformer_attention


class LongformerAttention(SparseAttention):
    """Each token reads its neighbours and the global tokens, which read everything."""

    config: "Longformer"

    def setup(self) -> None:
        super().setup()
        if not self.config.share_projections:
            # Its output projection is never called, so it has no parameters.
            self.global_heads = HeadProjections(self.context)

    def __call__(self, x_BLD: Array, mask_BL: Array) -> Array:
        o, at_L = self.config, jnp.arange(x_BLD.shape[1])
        first = slice(None, o.num_global)
        qkv = self.heads.rotated(x_BLD, self.position, at_L)
        if o.share_projections:
            global_qkv = (qkv[0][:, first], *qkv[1:])
        else:
            keys, values = self.global_heads.keys_values(x_BLD)
            queries = self.global_heads.queries(x_BLD[:, first])
            global_qkv = (*self.position.rotate(queries, keys, at_L[first], at_L), values)

        def attend(v: Array, v_all: Array, hooks: Hooks) -> Array:
            local_qkv = (*qkv[:2], v)
            whole_qkv = (*global_qkv[:2], v_all)
            return longformer_attention(
                local_qkv, whole_qkv, mask_BL, hooks, window=o.window, dilation=o.dilation
            )

        hooks = self.hooks()
        self.show_weights(lambda values: attend(values, values, Hooks(hooks.bias)), x_BLD)
        y_BLHK = attend(qkv[2], global_qkv[2], hooks)
        return self.heads.join(y_BLHK.astype(qkv[2].dtype))


@dataclass(frozen=True)
class Longformer(SparseConfig):
    """A window of at least the sequence's length, with shared projections, is full attention."""

    module: ClassVar[type[Mixer]] = LongformerAttention
    refuses: ClassVar[Refusals] = SparseConfig.refuses | {
        "decoder": "a global token reads the whole sequence, the future too; use window, or "
        "bigbird, whose first blocks every later token reads"
    }

    window: PositiveInt = 128  #: keys seen on each side besides the token itself
    dilation: PositiveInt = 1  #: distance between the keys seen in the window
    num_global: PositiveInt = 1  #: this many tokens at the front are read by all and read all
    share_projections: bool = False  #: one set of projections for local and global attention
