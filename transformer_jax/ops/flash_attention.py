"""Softmax attention with memory linear in the length: the [T, M] weights never exist.

Two kernels have a hand-written backward pass: cuDNN's flash attention on NVIDIA GPUs and JAX's
splash attention, in Pallas, on TPUs. On a mesh each device runs the kernel for its own rows and
heads. Neither takes dropout or a bias without [T, M] arrays, and cuDNN no float32; these cases and
all other devices use `blockwise_attention`, so the result is the same function everywhere, up
to rounding. A kernel can only be traced where its library is, so it is chosen while tracing, by
the devices that the program is for (`ops.sharding.target`).

`blockwise_attention` computes the weights of one block of queries at a time, since a query's
softmax needs no other query (Rabe and Staats 2021, arXiv:2112.05682), and again in the backward
pass. O(L) memory, and O(L M) time as in `ops.attention`.
"""

import math
from collections.abc import Callable
from functools import partial

import jax
import jax.numpy as jnp
from jax import Array

from transformer_jax.errors import UserError
from transformer_jax.ops.attention import NO_HOOKS, QKV, Hooks, dot_product_attention
from transformer_jax.ops.sequences import chunked, pad_to_multiple, unchunked
from transformer_jax.ops.sharding import num_shards, per_device, splits_work, target

#: The splash kernel reads this many queries and keys at a time, or fewer. Its blocks are multiples
#: of the lanes of a TPU's vector registers.
_SPLASH_BLOCK, _LANES = 512, 128


def flash_attention(
    qkv: QKV, key_mask_BM: Array, hooks: Hooks = NO_HOOKS, *, causal: bool = False
) -> Array:
    """As `blockwise_attention`, by the fastest kernel; padding must be at the end of each row."""
    kernel = chosen_kernel(qkv[0], hooks)
    if kernel == "blockwise":
        return blockwise_attention(qkv, key_mask_BM, hooks, causal=causal)
    # A row that only pads a batch has no key; one is enough to stay finite.
    key_mask_BM = key_mask_BM | (jnp.arange(key_mask_BM.shape[1]) == 0)
    attend = partial(_KERNELS[kernel], causal=causal, scale=hooks.scale_of(qkv[0]))
    return by_rows_and_heads(attend, qkv, key_mask_BM)


def chosen_kernel(q: Array | jax.ShapeDtypeStruct, hooks: Hooks = NO_HOOKS) -> str:
    """What `flash_attention` uses for these queries: `cudnn`, `splash` or `blockwise`."""
    if hooks.bias is not None or (hooks.dropout_key is not None and hooks.dropout_rate > 0.0):
        return "blockwise"
    if target() == "gpu" and q.dtype in (jnp.bfloat16, jnp.float16):
        return "cudnn" if q.shape[-1] % 8 == 0 and q.shape[-1] <= 128 else "blockwise"
    # XLA cannot split a Pallas call, so each device must get its own rows and heads.
    return "splash" if target() == "tpu" and splits_work() else "blockwise"


def by_rows_and_heads(attend: Callable[..., Array], qkv: QKV, key_mask_BM: Array) -> Array:
    """`attend(q, k, v, key_mask)`, computed by each device for its rows and heads.

    The rows are the logical axis "batch". Heads of keys and values that the mesh does not divide
    are repeated until it does, so that each device has those which its queries read. If it does
    not divide the queries' heads, every device computes all heads.
    """
    q_BTHK, k_BMGK, v_BMGK = qkv
    heads, groups, devices = q_BTHK.shape[2], k_BMGK.shape[2], num_shards("heads")
    repeats = math.lcm(groups, devices) // groups if heads % devices == 0 else 1
    k, v = (jnp.repeat(x, repeats, axis=2) for x in (k_BMGK, v_BMGK))
    return per_device(attend, ("batch", None, "heads"), q_BTHK, k, v, key_mask_BM)


def cudnn_attention(
    q_BTHK: Array, k_BMGK: Array, v_BMGK: Array, key_mask_BM: Array, *, causal: bool, scale: float
) -> Array:
    """cuDNN's kernel, for one device; every row needs a key."""
    try:
        return jax.nn.dot_product_attention(
            q_BTHK,
            k_BMGK,
            v_BMGK,
            scale=scale,
            is_causal=causal,
            key_value_seq_lengths=key_mask_BM.sum(axis=-1, dtype=jnp.int32),
            implementation="cudnn",
        )
    except RuntimeError as error:  # where a GPU is only described, its libraries may be missing
        raise UserError(
            f"attention for an NVIDIA GPU: {error}; pip install nvidia-cudnn-cu13 (or -cu12), as "
            "the version of CUDA is, or choose implementation=plain"
        ) from error


def splash_attention(
    q_BTHK: Array, k_BMGK: Array, v_BMGK: Array, key_mask_BM: Array, *, causal: bool, scale: float
) -> Array:
    """JAX's splash attention kernel, for one TPU; every row needs a key.

    Blocks above the diagonal are skipped where `causal`.
    """
    from jax.experimental.pallas.ops.tpu.splash_attention import (
        splash_attention_kernel as splash,
        splash_attention_mask as masks,
    )

    length, heads = q_BTHK.shape[1:3]
    q_block, k_block = _splash_block(length), _splash_block(k_BMGK.shape[1])
    # Whole blocks, heads first.
    q = jnp.moveaxis(pad_to_multiple(q_BTHK * scale, q_block), 2, 1)
    k, v = (jnp.moveaxis(pad_to_multiple(x, k_block), 2, 1) for x in (k_BMGK, v_BMGK))
    mask = (masks.CausalMask if causal else masks.FullMask)((q.shape[2], k.shape[2]))
    kernel = splash.make_splash_mha_single_device(
        masks.MultiHeadMask([mask] * heads),
        block_sizes=splash.BlockSizes(
            block_q=q_block,
            block_kv=k_block,
            block_q_dkv=q_block,
            block_kv_dkv=k_block,
            block_q_dq=q_block,
            block_kv_dq=k_block,
        ),
    )
    # Queries read only keys of their own segment: 1 for all queries and for the real keys.
    of_queries = jnp.ones(q.shape[2], jnp.int32)
    of_keys = pad_to_multiple(key_mask_BM, k_block).astype(jnp.int32)

    def row(q: Array, k: Array, v: Array, of_keys: Array) -> Array:
        return kernel(q, k, v, splash.SegmentIds(of_queries, of_keys))

    y = jax.vmap(row)(q, k, v, of_keys)
    return jnp.moveaxis(y, 1, 2)[:, :length].astype(v_BMGK.dtype)


def _splash_block(length: int) -> int:
    """The length cut into equal blocks, so that the last one has little padding."""
    blocks = -(-length // _SPLASH_BLOCK)
    return -(-length // (blocks * _LANES)) * _LANES


#: What `chosen_kernel` names, besides `blockwise`.
_KERNELS = {"cudnn": cudnn_attention, "splash": splash_attention}


def blockwise_attention(
    qkv: QKV, key_mask_BM: Array, hooks: Hooks = NO_HOOKS, *, causal: bool = False, block: int = 64
) -> Array:
    """Attends from positions 0 ... T-1 to 0 ... M-1, in blocks on any backend.

    Args:
        qkv: keys and values have H heads or a divisor of H; the width of values may differ.
        causal: a query reads the keys up to its own position.
        block: number of queries in a block.

    Returns:
        [B, T, H, V] in the dtype of the values; zeros in rows without a real key.
    """
    q_BTHK, k_BMGK, v_BMGV = qkv
    k_at_M = jnp.arange(key_mask_BM.shape[1])
    q_blocks = jnp.moveaxis(chunked(q_BTHK, block), 1, 0)

    @partial(jax.checkpoint, prevent_cse=False)  # the loop around it does that already
    def attend(numbered: tuple[Array, Array]) -> Array:
        number, q_BCHK = numbered
        q_at_C = number * block + jnp.arange(block)
        mask = key_mask_BM[:, None, None, :]
        if causal:
            mask = mask & (k_at_M[None, :] <= q_at_C[:, None])[None, None]
        bias_HCM = None if hooks.bias is None else hooks.bias(q_at_C, k_at_M)
        y_BCHV = dot_product_attention((q_BCHK, k_BMGK, v_BMGV), mask, bias_HCM, hooks.part(number))
        sees_a_key = jnp.swapaxes(mask.any(axis=-1, keepdims=True), 1, 2)
        return jnp.where(sees_a_key, y_BCHV, jnp.zeros((), y_BCHV.dtype))

    y_blocks = jax.lax.map(attend, (jnp.arange(len(q_blocks)), q_blocks))
    return unchunked(jnp.moveaxis(y_blocks, 0, 1), q_BTHK.shape[1])
