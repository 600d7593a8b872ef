"""Attention in which each block of queries reads a short, fixed list of key blocks.

The sequence is cut into N blocks of C tokens. Block n gathers the G key blocks that a
constant table lists, so the scores are N products of [C, K] and [K, G C], and no array is
L x L: O(L G C) time. A loop computes a few blocks per step and recomputes its body in the
backward pass, so memory holds the gathered keys and values, O(L G), and one step's scores.

With a dilation d, the tokens of a block are d apart: positions r, r + d, r + 2d, ... of one
residue class r. A dilated window is then a plain window within each class (Beltagy et al.
2020, arXiv:2004.05150, section 3.1), and a stride of l is one block for each class (Child
et al. 2019, arXiv:1904.10509, section 4.2).
"""

from collections.abc import Callable
from dataclasses import dataclass

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from transformer_jax.ops.attention import QKV, Hooks
from transformer_jax.ops.partial_attention import Partial, attend
from transformer_jax.ops.platform import by_platform
from transformer_jax.ops.sequences import pad_to_multiple

#: (query positions [..., C, 1], key positions [..., 1, M]) -> boolean [..., C, M].
Allowed = Callable[[Array, Array], Array]

#: Approximate limit on the float32 scores of one step of the loop: what fits the cache of a
#: CPU (4 MiB), and what fills other devices (256 MiB).
_STEP_SCORES = {"cpu": 1 << 20, "other": 1 << 26}


@dataclass(frozen=True)
class BlockLayout:
    """How a sequence is cut into blocks, and which blocks each of them reads.

    Attributes:
        length: tokens, L.
        block: tokens in a block, C.
        dilation: distance between neighbours within a block.
        reads_NG: the key blocks of each query block, each at most once; -1 = none.
    """

    length: int
    block: int
    dilation: int
    reads_NG: np.ndarray

    @property
    def positions_NC(self) -> np.ndarray:
        """The position of each token of each block; `length` or more for padding."""
        n = np.arange(num_blocks(self.length, self.block, self.dilation))[:, None]
        per_class = len(n) // self.dilation
        within = (n % per_class) * self.block + np.arange(self.block)
        return n // per_class + self.dilation * within

    def fold(self, x: Array) -> Array:
        """[B, L, ...] -> [N, B, C, ...], padded with zeros (False)."""
        batch, rest = x.shape[0], x.shape[2:]
        x = pad_to_multiple(x, self.block * self.dilation)
        # Position p = (m C + c) d + r becomes token c of block m of class r.
        x = x.reshape(batch, -1, self.block, self.dilation, *rest)
        return jnp.moveaxis(x, (3, 1, 0), (0, 1, 2)).reshape(-1, batch, self.block, *rest)

    def unfold(self, x: Array) -> Array:
        """[N, B, C, ...] -> [B, L, ...], without the padding."""
        _, batch, _, *rest = x.shape
        x = x.reshape(self.dilation, -1, batch, self.block, *rest)
        x = jnp.moveaxis(x, (0, 1, 2), (3, 1, 0))
        return x.reshape(batch, -1, *rest)[:, : self.length]


def num_blocks(length: int, block: int, dilation: int = 1) -> int:
    """Number of blocks for `length` tokens; each residue class has equally many."""
    return dilation * -(-length // (dilation * block))


def neighbour_reads(blocks: int, dilation: int, before: int, after: int) -> np.ndarray:
    """The table of a window: `before` and `after` blocks around the own one, within a class."""
    per_class = blocks // dilation
    n = np.arange(blocks)[:, None]
    within = n % per_class + np.arange(-min(before, per_class - 1), min(after, per_class - 1) + 1)
    inside = (within >= 0) & (within < per_class)
    return np.where(inside, n - n % per_class + within, -1)


def block_sparse_attention(
    qkv: QKV, key_mask_BL: Array, layout: BlockLayout, allowed: Allowed | None, hooks: Hooks
) -> Partial:
    """Each query reads the real, allowed keys of the blocks that its own block reads.

    Args:
        layout: the blocks, and which of them each block reads.
        allowed: which of the gathered keys a query may read; None = all.
        hooks: bias (evaluated one block at a time) and dropout.
    """
    q_BLHK, k_BLHK, v_BLHV = qkv
    valid_NG = layout.reads_NG >= 0
    reads_NG = np.maximum(layout.reads_NG, 0)
    (blocks, reads), (batch, _, heads, _) = reads_NG.shape, q_BLHK.shape
    keys = reads * layout.block

    def gather(x_BLHK: Array) -> Array:
        x_NGBCHK = layout.fold(x_BLHK)[reads_NG]
        return x_NGBCHK.transpose(0, 2, 4, 1, 3, 5).reshape(blocks, batch, heads, keys, -1)

    mask_NGBC = layout.fold(key_mask_BL)[reads_NG] & valid_NG[:, :, None, None]
    inputs = (
        jnp.arange(blocks, dtype=jnp.int32),
        layout.fold(q_BLHK).swapaxes(2, 3),
        gather(k_BLHK),
        gather(v_BLHV),
        mask_NGBC.transpose(0, 2, 1, 3).reshape(blocks, batch, keys),
        jnp.asarray(layout.positions_NC, jnp.int32),
        jnp.asarray(layout.positions_NC[reads_NG].reshape(blocks, keys), jnp.int32),
    )

    def one_step(inputs: tuple[Array, ...]) -> Partial:
        numbers_N, q_NBHCK, k_NBHMK, v_NBHMV, mask_NBM, q_at_NC, k_at_NM = inputs
        mask = mask_NBM[:, :, None, None, :]
        if allowed is not None:
            mask = mask & allowed(q_at_NC[:, :, None], k_at_NM[:, None, :])[:, None, None]
        bias = None
        if hooks.bias is not None:
            bias = jax.vmap(hooks.bias)(q_at_NC, k_at_NM)[:, None]
        part = hooks.part(numbers_N[0])._replace(batch_axis=1)
        return attend(q_NBHCK, k_NBHMK, v_NBHMV, mask, bias, part)

    def in_steps(inputs: tuple[Array, ...], steps: int) -> Partial:
        if steps == 1:
            return one_step(inputs)
        split = tuple(x.reshape(steps, blocks // steps, *x.shape[1:]) for x in inputs)
        # Inside a loop no barrier against common subexpressions is needed (`prevent_cse`).
        stacked = jax.lax.map(jax.checkpoint(one_step, prevent_cse=False), split)
        return jax.tree.map(lambda x: x.reshape(blocks, *x.shape[2:]), stacked)

    scores = batch * heads * layout.block * keys
    cpu = _num_steps(blocks, scores, _STEP_SCORES["cpu"])
    other = _num_steps(blocks, scores, _STEP_SCORES["other"])
    # For short sequences the number of steps is the same on every platform: trace once.
    same = cpu == other
    part = in_steps(inputs, cpu) if same else by_platform(in_steps, inputs, cpu=cpu, other=other)
    return Partial(*(layout.unfold(x.swapaxes(2, 3)) for x in part))


def _num_steps(blocks: int, scores_per_block: int, limit: int) -> int:
    """The smallest divisor of `blocks` with which one step's scores are within the limit."""
    divisors = (steps for steps in range(1, blocks) if blocks % steps == 0)
    return next((n for n in divisors if blocks // n * scores_per_block <= limit), blocks)
