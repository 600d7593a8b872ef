"""BigBird: window, global and random blocks (Zaheer et al. 2020, arXiv:2007.14062).

The sequence is cut into blocks of C tokens. With g global, 2 w + 1 window and r random
blocks (the paper's "internal" construction, section 2 and appendix D), a token of block n reads

    encoder   blocks 0 ... g-1,  n-w ... n+w,  r drawn from the others;  n < g reads all
    decoder   of the same, what is not after the token: blocks 0 ... g-1 and n-w ... n, and
              r drawn from the earlier others

O(L C (g + 2w + 1 + r)) time and memory in the encoder. A decoding step reads only the
tokens of its C (g + w + 1 + r), though the cache keeps those of every token so far.

The draw depends on `seed`, the number of the layer and `max_length`, not on the data: the
same token reads the same blocks in every batch, step and run, whatever the padding. In the
encoder, sequences much shorter than `max_length` therefore have fewer random blocks. Unlike
in the authors' code, all heads of a layer share one draw, and only the first g blocks are
global: the position of the last one, which the authors also take, depends on the padding.
"""

from dataclasses import dataclass
from functools import lru_cache
from typing import ClassVar

import jax.numpy as jnp
import numpy as np
from jax import Array
from pydantic import NonNegativeInt, PositiveInt

from transformer_jax.mixers.base import Mixer
from transformer_jax.mixers.sparse_attention import CachedSparseAttention, SparseConfig
from transformer_jax.ops.attention import QKV, Hooks
from transformer_jax.ops.block_sparse_attention import num_blocks
from transformer_jax.ops.sparse_attention import BigBirdBlocks, bigbird_attention, bigbird_reads

_plan = lru_cache(maxsize=64)(bigbird_reads)


class BigBirdAttention(CachedSparseAttention):
    """Each block reads its neighbours, the first blocks and some drawn at random."""

    config: "BigBird"

    @property
    def block(self) -> int:
        """Tokens in a block."""
        return min(self.config.block_size, self.context.max_length)

    @property
    def kinds(self) -> BigBirdBlocks:
        """Which blocks a block reads."""
        o, seed = self.config, (self.config.seed, self.context.layer)
        numbers = o.global_blocks, o.window_blocks, o.random_blocks
        return BigBirdBlocks(*numbers, self.context.causal, seed)

    def plan(self, length: int) -> np.ndarray:
        """The key blocks of each query block, for `max_length` or more tokens."""
        return _plan(num_blocks(max(length, self.context.max_length), self.block), self.kinds)

    def attend(self, qkv: QKV, mask_BL: Array, hooks: Hooks) -> Array:
        plan = self.plan(mask_BL.shape[1])
        return bigbird_attention(qkv, mask_BL, hooks, plan, self.block, self.kinds)

    def reads(self, position: Array, room: int) -> tuple[Array, Array]:
        # The room is rounded up, and the draw must be that of the parallel form.
        reads_G = jnp.asarray(self.plan(min(room, self.context.max_length)))[position // self.block]
        at_M = (reads_G[:, None] * self.block + jnp.arange(self.block)[None]).reshape(-1)
        return at_M, (at_M >= 0) & (at_M <= position)


@dataclass(frozen=True)
class BigBird(SparseConfig):
    """As many window blocks as there are blocks is full attention."""

    module: ClassVar[type[Mixer]] = BigBirdAttention
    uses_layer: ClassVar[bool] = True

    block_size: PositiveInt = 64  #: tokens in a block; at most model.max_length are used
    window_blocks: NonNegativeInt = 1  #: read on each side (decoder: before) besides its own
    global_blocks: NonNegativeInt = 2  #: this many of the first blocks are read by all
    random_blocks: NonNegativeInt = 3  #: drawn for each block from the others
    seed: NonNegativeInt = 0  #: of the draw
