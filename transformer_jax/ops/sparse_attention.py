"""Sparse attention patterns, built on `block_sparse_attention`.

Each takes queries and keys [B, L, H, K], values [B, L, H, V] of any width, the mask of real
tokens [B, L], and `hooks` (bias and dropout). It returns [B, L, H, V] in float32, and builds no
L x L array.
"""

from itertools import zip_longest
from typing import NamedTuple

import jax.numpy as jnp
import numpy as np
from jax import Array

from transformer_jax.ops.attention import QKV, Hooks
from transformer_jax.ops.block_sparse_attention import (
    BlockLayout,
    block_sparse_attention,
    neighbour_reads,
    num_blocks,
)
from transformer_jax.ops.partial_attention import Partial, dense_part, join

#: A window's blocks are as long as the window, but not shorter than this: products of smaller
#: matrices cost more than they save.
_SHORTEST_BLOCK = 32


class Neighbours(NamedTuple):
    """Keys at distances 0, d, 2d, ..., window * d, before and (not causal) after the query.

    Attributes:
        window: number of keys on each side besides the token itself.
        dilation: d.
        causal: only the keys before the query.
        first_key: keys before this position are not read; another part has them.
        block: tokens in a block; chosen by the window unless given.
    """

    window: int
    dilation: int = 1
    causal: bool = False
    first_key: int = 0
    block: int | None = None


def window_part(qkv: QKV, mask_BL: Array, hooks: Hooks, near: Neighbours) -> Partial:
    """The neighbours of each token."""
    length, window = mask_BL.shape[1], near.window
    dilation = min(near.dilation, length)
    block = min(near.block or max(window, _SHORTEST_BLOCK), -(-length // dilation))
    blocks_away = -(-window // block)
    blocks = num_blocks(length, block, dilation)
    reads_NG = neighbour_reads(blocks, dilation, blocks_away, 0 if near.causal else blocks_away)
    layout = BlockLayout(length, block, dilation, reads_NG)

    def allowed(q_at: Array, k_at: Array) -> Array:
        behind = q_at - k_at
        ahead = 0 if near.causal else window * dilation
        return (behind >= -ahead) & (behind <= window * dilation) & (k_at >= near.first_key)

    return block_sparse_attention(qkv, mask_BL, layout, allowed, hooks)


def longformer_attention(
    local_qkv: QKV, global_qkv: QKV, mask_BL: Array, hooks: Hooks, *, window: int, dilation: int
) -> Array:
    """A window, and G global tokens at the start, which read all tokens and are read by all.

    Args:
        local_qkv: for the windows and for reading the global tokens.
        global_qkv: queries [B, G, H, K] of the global tokens, and the keys and values
            [B, L, H, K or V] that they read.
        window: number of keys on each side besides the token itself.
    """
    count = global_qkv[0].shape[1]
    q_BLHK, k_BLHK, v_BLHV = local_qkv
    first_qkv = (q_BLHK, k_BLHK[:, :count], v_BLHV[:, :count])
    reads_global = dense_part(first_qkv, mask_BL[:, :count], hooks.part(0))
    others = Neighbours(window, dilation, first_key=count)
    near = window_part(local_qkv, mask_BL, hooks.part(1), others)
    is_global = dense_part(global_qkv, mask_BL, hooks.part(2))
    return jnp.concatenate([is_global.value, join(reads_global, near)[:, count:]], axis=1)


def strided_attention(
    qkv: QKV, mask_BL: Array, hooks: Hooks, *, stride: int, causal: bool
) -> Array:
    """Keys at distances 0 ... stride, and at every multiple of the stride."""
    length = mask_BL.shape[1]
    # Half as long as the window: scores 2.5 strides of keys for the 2 that are read,
    # instead of 3. The window is most of the pattern's work.
    block = max(-(-stride // 2), _SHORTEST_BLOCK)
    neighbours = Neighbours(stride, causal=causal, block=block)
    near = window_part(qkv, mask_BL, hooks.part(0), neighbours)
    if 2 * stride >= length:
        return near.value
    # Tokens a stride apart form one block for each residue class, which reads itself.
    layout = BlockLayout(length, -(-length // stride), stride, np.arange(stride)[:, None])

    def allowed(q_at: Array, k_at: Array) -> Array:
        behind = q_at - k_at
        far = behind if causal else jnp.abs(behind)
        return far >= 2 * stride  # nearer keys are in the window

    far = block_sparse_attention(qkv, mask_BL, layout, allowed, hooks.part(1))
    return join(near, far)


class BigBirdBlocks(NamedTuple):
    """Which blocks a block reads.

    Attributes:
        global_blocks: number of blocks at the start that all blocks read.
        window_blocks: number of blocks read on each side of the own one.
        random_blocks: number of blocks drawn without replacement from the rest.
        causal: no block after the own one.
        seed: of the draw.
    """

    global_blocks: int
    window_blocks: int
    random_blocks: int
    causal: bool
    seed: tuple[int, int]


def bigbird_reads(blocks: int, kinds: BigBirdBlocks) -> np.ndarray:
    """The key blocks of each query block, [N, G]; -1 = none.

    Row n depends only on the arguments and n (if not causal, also on `blocks`). So one table
    serves every shorter length: cut it and drop the blocks outside.
    """
    global_blocks, window_blocks, random_blocks, causal, seed = kinds
    rows = []
    for n in range(blocks):
        last = n if causal else blocks - 1
        fixed = {*range(min(global_blocks, last + 1))}
        fixed |= {*range(max(n - window_blocks, 0), min(n + window_blocks, last) + 1)}
        rest = [m for m in range(last + 1) if m not in fixed]
        drawn = np.random.default_rng((*seed, n)).permutation(rest)[:random_blocks]
        rows.append([*sorted(fixed), *(int(m) for m in drawn)])
    return np.array([*zip_longest(*rows, fillvalue=-1)]).T


def bigbird_attention(
    qkv: QKV, mask_BL: Array, hooks: Hooks, reads_NG: np.ndarray, block: int, kinds: BigBirdBlocks
) -> Array:
    """The blocks of the table; if not causal, the global blocks themselves read everything.

    Args:
        reads_NG: from `bigbird_reads`, for at least this length.
        block: tokens in a block.
        kinds: of which the table is.
    """
    length, causal = mask_BL.shape[1], kinds.causal
    reads = reads_NG[: num_blocks(length, block)]
    layout = BlockLayout(length, block, 1, np.where(reads < len(reads), reads, -1))
    global_tokens = 0 if causal else min(kinds.global_blocks * block, length)
    parts = []
    if global_tokens:
        global_qkv = (qkv[0][:, :global_tokens], *qkv[1:])
        parts.append(dense_part(global_qkv, mask_BL, hooks.part(0)).value)
    if global_tokens < length:
        allowed = (lambda q_at, k_at: k_at <= q_at) if causal else None
        rest = block_sparse_attention(qkv, mask_BL, layout, allowed, hooks.part(1))
        parts.append(rest.value[:, global_tokens:])
    return jnp.concatenate(parts, axis=1)
