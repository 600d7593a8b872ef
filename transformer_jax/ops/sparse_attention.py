"""Sparse attention patterns, built on `block_sparse_attention`.

Each takes q, k [B, L, H, K], v [B, L, H, V] (any width), the mask of real tokens [B, L], and
`hooks` (bias and dropout), and returns [B, L, H, V] in float32. None builds an L x L array.
"""

import jax
import jax.numpy as jnp
import numpy as np

from transformer_jax.ops.block_sparse_attention import (
    BlockLayout,
    block_sparse_attention,
    neighbour_reads,
    num_blocks,
)
from transformer_jax.ops.partial_attention import Hooks, Partial, dense_part, join

#: A window's blocks are as long as the window, but not shorter than this: products of smaller
#: matrices cost more than they save.
_SHORTEST_BLOCK = 32


def window_part(
    q_BLHK: jax.Array,
    k_BLHK: jax.Array,
    v_BLHV: jax.Array,
    mask_BL: jax.Array,
    *,
    window: int,
    dilation: int,
    causal: bool,
    hooks: Hooks,
    first_key: int = 0,
    block: int | None = None,
) -> Partial:
    """Keys at distances 0, d, 2d, ..., window * d, before and (not causal) after the query.

    Args:
        window: number of keys on each side besides the token itself.
        dilation: d.
        causal: only the keys before the query.
        first_key: keys before this position are not read; another part has them.
        block: tokens in a block; chosen by the window unless given.
    """
    length = q_BLHK.shape[1]
    dilation = min(dilation, length)
    block = min(block or max(window, _SHORTEST_BLOCK), -(-length // dilation))
    blocks_away = -(-window // block)
    blocks = num_blocks(length, block, dilation)
    layout = BlockLayout(
        length,
        block,
        dilation,
        neighbour_reads(blocks, dilation, blocks_away, 0 if causal else blocks_away),
    )

    def allowed(q_at: jax.Array, k_at: jax.Array) -> jax.Array:
        behind = q_at - k_at
        near = (behind >= (0 if causal else -window * dilation)) & (behind <= window * dilation)
        return near & (k_at >= first_key)

    return block_sparse_attention(q_BLHK, k_BLHK, v_BLHV, mask_BL, layout, allowed, hooks)


def longformer_attention(
    local_qkv: tuple[jax.Array, jax.Array, jax.Array],
    global_qkv: tuple[jax.Array, jax.Array, jax.Array],
    mask_BL: jax.Array,
    *,
    window: int,
    dilation: int,
    hooks: Hooks,
) -> jax.Array:
    """A window, and G global tokens at the start, which read all tokens and are read by all.

    Args:
        local_qkv: [B, L, H, K or V] each, for the windows and for reading the global tokens.
        global_qkv: queries [B, G, H, K] of the global tokens, and the keys and values
            [B, L, H, K or V] that they read.
        window: number of keys on each side besides the token itself.
    """
    q_BLHK, k_BLHK, v_BLHV = local_qkv
    q_BGHK, k_all_BLHK, v_all_BLHV = global_qkv
    at_L, count = jnp.arange(q_BLHK.shape[1]), q_BGHK.shape[1]
    first = slice(None, count)
    reads_global = dense_part(
        q_BLHK,
        k_BLHK[:, first],
        v_BLHV[:, first],
        mask_BL[:, first],
        at_L,
        at_L[first],
        hooks.part(0),
    )
    near = window_part(
        q_BLHK,
        k_BLHK,
        v_BLHV,
        mask_BL,
        window=window,
        dilation=dilation,
        causal=False,
        hooks=hooks.part(1),
        first_key=count,
    )
    is_global = dense_part(
        q_BGHK, k_all_BLHK, v_all_BLHV, mask_BL, at_L[first], at_L, hooks.part(2)
    )
    return jnp.concatenate([is_global.value, join(reads_global, near)[:, count:]], axis=1)


def strided_attention(
    q_BLHK: jax.Array,
    k_BLHK: jax.Array,
    v_BLHV: jax.Array,
    mask_BL: jax.Array,
    *,
    stride: int,
    causal: bool,
    hooks: Hooks,
) -> jax.Array:
    """Keys at distances 0 ... stride, and at every multiple of the stride."""
    length = q_BLHK.shape[1]
    near = window_part(
        q_BLHK,
        k_BLHK,
        v_BLHV,
        mask_BL,
        window=stride,
        dilation=1,
        causal=causal,
        hooks=hooks.part(0),
        # Half as long as the window: scores 2.5 strides of keys for the 2 that are read,
        # instead of 3. The window is most of the pattern's work.
        block=max(-(-stride // 2), _SHORTEST_BLOCK),
    )
    if 2 * stride >= length:
        return near.value
    # Tokens a stride apart form one block for each residue class, which reads itself.
    layout = BlockLayout(length, -(-length // stride), stride, np.arange(stride)[:, None])

    def allowed(q_at: jax.Array, k_at: jax.Array) -> jax.Array:
        behind = q_at - k_at
        far = behind if causal else jnp.abs(behind)
        return far >= 2 * stride  # nearer keys are in the window

    far = block_sparse_attention(q_BLHK, k_BLHK, v_BLHV, mask_BL, layout, allowed, hooks.part(1))
    return join(near, far)


def bigbird_reads(
    blocks: int,
    *,
    global_blocks: int,
    window_blocks: int,
    random_blocks: int,
    causal: bool,
    seed: tuple[int, int],
) -> np.ndarray:
    """The key blocks of each query block, [N, G]; -1 = none.

    Row n depends only on the arguments and n (if not causal, also on `blocks`). So one table
    serves every shorter length: cut it and drop the blocks outside.

    Args:
        global_blocks: number of blocks at the start that all blocks read.
        window_blocks: number of blocks read on each side of the own one.
        random_blocks: number of blocks drawn without replacement from the rest.
        causal: no block after the own one.
    """
    rows = []
    for n in range(blocks):
        last = n if causal else blocks - 1
        fixed = {*range(min(global_blocks, last + 1))}
        fixed |= {*range(max(n - window_blocks, 0), min(n + window_blocks, last) + 1)}
        rest = [m for m in range(last + 1) if m not in fixed]
        drawn = np.random.default_rng((*seed, n)).permutation(rest)[:random_blocks]
        rows.append([*sorted(fixed), *(int(m) for m in drawn)])
    reads_NG = np.full((blocks, max(map(len, rows))), -1)
    for row, reads in zip(reads_NG, rows, strict=True):
        row[: len(reads)] = reads
    return reads_NG


def bigbird_attention(
    q_BLHK: jax.Array,
    k_BLHK: jax.Array,
    v_BLHV: jax.Array,
    mask_BL: jax.Array,
    *,
    reads_NG: np.ndarray,
    block: int,
    global_blocks: int,
    causal: bool,
    hooks: Hooks,
) -> jax.Array:
    """The blocks of the table; if not causal, the global blocks themselves read everything.

    Args:
        reads_NG: from `bigbird_reads`, for at least this length.
        block: tokens in a block.
    """
    length = q_BLHK.shape[1]
    reads = reads_NG[: num_blocks(length, block)]
    layout = BlockLayout(length, block, 1, np.where(reads < len(reads), reads, -1))
    global_tokens = 0 if causal else min(global_blocks * block, length)
    at_L = jnp.arange(length)
    parts = []
    if global_tokens:
        first = slice(None, global_tokens)
        seen_by_global = dense_part(
            q_BLHK[:, first], k_BLHK, v_BLHV, mask_BL, at_L[first], at_L, hooks.part(0)
        )
        parts.append(seen_by_global.value)
    if global_tokens < length:
        rest = block_sparse_attention(
            q_BLHK,
            k_BLHK,
            v_BLHV,
            mask_BL,
            layout,
            (lambda q_at, k_at: k_at <= q_at) if causal else None,
            hooks.part(1),
        )
        parts.append(rest.value[:, global_tokens:])
    return jnp.concatenate(parts, axis=1)
