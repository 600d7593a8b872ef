"""Softmax attention with memory linear in the length: the [T, M] weights never exist.

Two kernels have a hand-written backward pass: cuDNN's flash attention on NVIDIA GPUs and JAX's
splash attention, in Pallas, on TPUs. On a mesh each device runs the kernel for its own rows and
heads. Neither takes dropout or a bias without [T, M] arrays, and cuDNN no float32; these cases and
all other devices use `blockwise_attention`, so the result is the same function everywhere, up
to rounding. A kernel can only be traced where its library is, so it is chosen while tracing, by
the devices that the program is for (`ops.sharding.target`).

`blockwise_attention` reads the keys block by block. A running maximum m and sum l correct
what was added before (the online softmax of Milakov and Gimelshein 2018, arXiv:1805.02867;
as attention: Rabe and Staats 2021, arXiv:2112.05682, and Dao et al. 2022, arXiv:2205.14135):

    m' = max(m, max_j s_j)
    l' = l e^(m - m') + sum_j e^(s_j - m')
    y' = y e^(m - m') + sum_j e^(s_j - m') v_j           output: y / l

Its loops are rematerialised: the backward pass computes each block again and keeps the
scores of one block at a time. O(L) memory, and O(L M) time as in `ops.attention`.
"""

import math
from collections.abc import Callable
from functools import partial

import jax
import jax.numpy as jnp

from transformer_jax.errors import UserError
from transformer_jax.ops.attention import (
    MASKED,
    NO_HOOKS,
    Hooks,
    attention_scores,
    weighted_values,
)
from transformer_jax.ops.dropout import dropout
from transformer_jax.ops.sequences import chunked, pad_to_multiple, unchunked
from transformer_jax.ops.sharding import num_shards, per_device, splits_work, target

Running = tuple[jax.Array, jax.Array, jax.Array]  # m_BHT, l_BHT, y_BTHK

#: The splash kernel reads this many queries and keys at a time, or fewer. Its blocks are multiples
#: of the lanes of a TPU's vector registers.
_SPLASH_BLOCK, _LANES = 512, 128


def flash_attention(
    q_BTHK: jax.Array,
    k_BMGK: jax.Array,
    v_BMJV: jax.Array,
    key_mask_BM: jax.Array,
    hooks: Hooks = NO_HOOKS,
    *,
    causal: bool = False,
    scale: float | None = None,
) -> jax.Array:
    """As `blockwise_attention`, by the fastest kernel; padding must be at the end of each row."""
    scale = q_BTHK.shape[-1] ** -0.5 if scale is None else scale
    kernel = chosen_kernel(q_BTHK, k_BMGK, v_BMJV, hooks)
    if kernel == "blockwise":
        return blockwise_attention(
            q_BTHK, k_BMGK, v_BMJV, key_mask_BM, hooks, causal=causal, scale=scale
        )
    # A row that only pads a batch has no key; one is enough to stay finite.
    key_mask_BM = key_mask_BM | (jnp.arange(key_mask_BM.shape[1]) == 0)
    attend = partial(_KERNELS[kernel], causal=causal, scale=scale)
    return by_rows_and_heads(attend, q_BTHK, k_BMGK, v_BMJV, key_mask_BM)


def chosen_kernel(
    q_BTHK: jax.Array, k_BMGK: jax.Array, v_BMJV: jax.Array, hooks: Hooks = NO_HOOKS
) -> str:
    """The kernel that `flash_attention` uses for the devices that the program is for."""
    has_extras = hooks.bias is not None or (
        hooks.dropout_key is not None and hooks.dropout_rate > 0.0
    )
    return kernel_for(
        target(), q_BTHK, k_BMGK, v_BMJV, is_split=splits_work(), has_extras=has_extras
    )


def kernel_for(
    platform: str,
    q: jax.Array | jax.ShapeDtypeStruct,
    k: jax.Array | jax.ShapeDtypeStruct,
    v: jax.Array | jax.ShapeDtypeStruct,
    *,
    is_split: bool,
    has_extras: bool,
) -> str:
    """`cudnn`, `splash` or `blockwise`, by what the kernels can take.

    Args:
        platform: of the devices that the program is for.
        q: queries. Only the shapes and dtypes of q, k and v are read.
        is_split: whether each device gets its own rows and heads (`sharding.splits_work`). XLA
            cannot split a Pallas call.
        has_extras: a bias (which cuDNN takes only as a whole [T, M] array) or dropout.
    """
    if has_extras or k.shape != v.shape:
        return "blockwise"
    width = q.shape[-1]
    if platform == "gpu" and q.dtype in (jnp.bfloat16, jnp.float16):
        return "cudnn" if width % 8 == 0 and width <= 128 else "blockwise"
    return "splash" if platform == "tpu" and is_split else "blockwise"


def by_rows_and_heads(
    attend: Callable[..., jax.Array],
    q_BTHK: jax.Array,
    k_BMGK: jax.Array,
    v_BMGK: jax.Array,
    key_mask_BM: jax.Array,
) -> jax.Array:
    """`attend(q, k, v, key_mask)`, computed by each device for its rows and heads.

    The rows are the logical axis "batch". Heads of keys and values that the mesh does not divide
    are repeated until it does, so that each device has those which its queries read. If it does
    not divide the queries' heads, every device computes all heads.
    """
    heads, groups, devices = q_BTHK.shape[2], k_BMGK.shape[2], num_shards("heads")
    repeats = math.lcm(groups, devices) // groups if heads % devices == 0 else 1
    k, v = (jnp.repeat(x, repeats, axis=2) for x in (k_BMGK, v_BMGK))
    return per_device(attend, ("batch", None, "heads"), q_BTHK, k, v, key_mask_BM)


def cudnn_attention(
    q_BTHK: jax.Array,
    k_BMGK: jax.Array,
    v_BMGK: jax.Array,
    key_mask_BM: jax.Array,
    *,
    causal: bool,
    scale: float,
) -> jax.Array:
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
    q_BTHK: jax.Array,
    k_BMGK: jax.Array,
    v_BMGK: jax.Array,
    key_mask_BM: jax.Array,
    *,
    causal: bool,
    scale: float,
) -> jax.Array:
    """JAX's splash attention kernel, for one TPU; every row needs a key.

    Blocks above the diagonal are skipped where `causal`.
    """
    from jax.experimental.pallas.ops.tpu.splash_attention import (
        splash_attention_kernel as splash,
    )
    from jax.experimental.pallas.ops.tpu.splash_attention import splash_attention_mask as masks

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

    def row(q: jax.Array, k: jax.Array, v: jax.Array, of_keys: jax.Array) -> jax.Array:
        y: jax.Array = kernel(q, k, v, splash.SegmentIds(of_queries, of_keys))
        return y

    y = jax.vmap(row)(q, k, v, of_keys)
    return jnp.moveaxis(y, 1, 2)[:, :length].astype(v_BMGK.dtype)


def _splash_block(length: int) -> int:
    """The length cut into equal blocks, so that the last one has little padding."""
    blocks = -(-length // _SPLASH_BLOCK)
    return -(-length // (blocks * _LANES)) * _LANES


#: What `kernel_for` names, besides `blockwise`.
_KERNELS = {"cudnn": cudnn_attention, "splash": splash_attention}


def blockwise_attention(
    q_BTHK: jax.Array,
    k_BMGK: jax.Array,
    v_BMJV: jax.Array,
    key_mask_BM: jax.Array,
    hooks: Hooks = NO_HOOKS,
    *,
    causal: bool = False,
    scale: float | None = None,
    block: int = 256,
) -> jax.Array:
    """Attends from positions 0 ... T-1 to 0 ... M-1, in blocks on any backend.

    Args:
        k_BMGK: keys, with H heads or a divisor of H.
        v_BMJV: values, likewise; their width may differ from that of the keys.
        causal: a query reads the keys up to its own position.
        scale: of the product; 1 / sqrt(K) unless given.
        block: maximum number of queries and of keys in a block.

    Returns:
        [B, T, H, K] in the dtype of the values; zeros in rows without a real key.
    """
    length = q_BTHK.shape[1]
    block = min(block, max(length, k_BMGK.shape[1]))
    # [L / block, B, block, ...]; the mask is padded with False.
    q_blocks, k_blocks, v_blocks, mask_blocks = (
        jnp.moveaxis(chunked(x, block), 1, 0) for x in (q_BTHK, k_BMGK, v_BMJV, key_mask_BM)
    )

    def attend(carry: None, numbered: tuple[jax.Array, jax.Array]) -> tuple[None, jax.Array]:
        number, q_BCHK = numbered
        q_positions = number * block + jnp.arange(block)
        row_hooks = hooks.part(number)

        def read(
            running: Running, keys: tuple[jax.Array, jax.Array, jax.Array, jax.Array]
        ) -> tuple[Running, None]:
            k_number, k_BCGK, v_BCJV, mask_BC = keys
            k_positions = k_number * block + jnp.arange(block)

            def visible(running: Running) -> Running:
                scores = attention_scores(q_BCHK, k_BCGK, scale=scale)
                if hooks.bias is not None:
                    scores = scores + hooks.bias(q_positions, k_positions)[None]
                mask = mask_BC[:, None, None, :]
                if causal:
                    mask = mask & (k_positions[None, :] <= q_positions[:, None])[None, None]
                return _accumulate(running, scores, mask, v_BCJV, row_hooks.part(k_number))

            if not causal:
                return visible(running), None
            in_future = k_number > number
            return jax.lax.cond(in_future, lambda running: running, visible, running), None

        batch, _, heads, _ = q_BCHK.shape
        start = (
            jnp.full((batch, heads, block), MASKED, jnp.float32),
            jnp.zeros((batch, heads, block), jnp.float32),
            jnp.zeros((batch, block, heads, v_BMJV.shape[-1]), jnp.float32),
        )
        numbers = jnp.arange(len(k_blocks))
        (_, sum_BHC, y_BCHV), _ = jax.lax.scan(
            jax.checkpoint(read), start, (numbers, k_blocks, v_blocks, mask_blocks)
        )
        # Where no key is real, both y and the sum are 0.
        y_BCHV = y_BCHV / jnp.maximum(sum_BHC, 1e-30).swapaxes(1, 2)[..., None]
        return carry, y_BCHV.astype(v_BMJV.dtype)

    _, y_blocks = jax.lax.scan(jax.checkpoint(attend), None, (jnp.arange(len(q_blocks)), q_blocks))
    return unchunked(jnp.moveaxis(y_blocks, 0, 1), length)


def _accumulate(
    running: Running, scores_BHTC: jax.Array, mask: jax.Array, v_BCJV: jax.Array, hooks: Hooks
) -> Running:
    """Adds one block of keys."""
    max_BHT, sum_BHT, y_BTHK = running
    scores_BHTC = jnp.where(mask, scores_BHTC, MASKED)
    # y / l does not depend on the maximum, so no gradient needs to pass through it.
    new_max_BHT = jax.lax.stop_gradient(jnp.maximum(max_BHT, scores_BHTC.max(axis=-1)))
    decay_BHT = jnp.exp(max_BHT - new_max_BHT)
    weights_BHTC = jnp.where(mask, jnp.exp(scores_BHTC - new_max_BHT[..., None]), 0.0)
    # The sum is taken before dropout, as when dropout follows a softmax.
    kept_BHTC = dropout(weights_BHTC, hooks.dropout_rate, hooks.dropout_key)
    y_BTHK = y_BTHK * decay_BHT.swapaxes(1, 2)[..., None] + weighted_values(kept_BHTC, v_BCJV)
    return new_max_BHT, sum_BHT * decay_BHT + weights_BHTC.sum(axis=-1), y_BTHK
