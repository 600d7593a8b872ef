"""Softmax attention with memory linear in the length, by the best kernel there is.

NVIDIA GPUs have cuDNN's flash attention and TPUs a Pallas one, both with a hand-written
backward pass. Each takes only part of the cases (cuDNN no float32, neither a bias in
blocks or dropout); the rest, and every other backend, get `ops.blockwise_attention`,
which takes all. So the result is the same function everywhere, up to the rounding of
the kernel.
"""

import jax
import jax.numpy as jnp

from transformer_jax.ops.blockwise_attention import Bias, blockwise_attention

#: Rows and columns of the Pallas kernel's blocks; lengths are padded to a multiple.
_PALLAS_BLOCK = 128


def fused_attention(
    q_BTHK: jax.Array,
    k_BMGK: jax.Array,
    v_BMGK: jax.Array,
    key_mask_BM: jax.Array,
    *,
    causal: bool = False,
    bias: Bias | None = None,
    scale: float | None = None,
    dropout_rate: float = 0.0,
    dropout_key: jax.Array | None = None,
) -> jax.Array:
    """As `blockwise_attention`; padding must stand at the end of each row."""
    scale = q_BTHK.shape[-1] ** -0.5 if scale is None else scale
    kernel = kernel_for(
        jax.default_backend(),
        jax.device_count(),
        q_BTHK,
        k_BMGK,
        v_BMGK,
        has_extras=bias is not None or (dropout_key is not None and dropout_rate > 0.0),
    )
    if kernel == "cudnn":
        return _cudnn(q_BTHK, k_BMGK, v_BMGK, key_mask_BM, causal, scale)
    if kernel == "pallas":
        return pallas_attention(q_BTHK, k_BMGK, v_BMGK, key_mask_BM, causal=causal, scale=scale)
    return blockwise_attention(
        q_BTHK,
        k_BMGK,
        v_BMGK,
        key_mask_BM,
        causal=causal,
        bias=bias,
        scale=scale,
        dropout_rate=dropout_rate,
        dropout_key=dropout_key,
    )


def kernel_for(
    backend: str,
    devices: int,
    q: jax.Array | jax.ShapeDtypeStruct,
    k: jax.Array | jax.ShapeDtypeStruct,
    v: jax.Array | jax.ShapeDtypeStruct,
    *,
    has_extras: bool,
) -> str:
    """`cudnn`, `pallas` or `blockwise`, by what the vendors' kernels can take.

    Args:
        backend: `jax.default_backend()`.
        devices: how many there are; XLA cannot split a Pallas call over several.
        q: queries; as all three, only its shape and dtype are read.
        k: keys.
        v: values.
        has_extras: a bias (which they take only as a whole [T, M] array) or dropout.
    """
    if has_extras or k.shape != v.shape:
        return "blockwise"
    width = q.shape[-1]
    if backend == "gpu" and q.dtype in (jnp.bfloat16, jnp.float16):
        return "cudnn" if width % 8 == 0 and width <= 128 else "blockwise"
    if backend == "tpu" and devices == 1:
        return "pallas"
    return "blockwise"


def _cudnn(
    q: jax.Array, k: jax.Array, v: jax.Array, key_mask_BM: jax.Array, causal: bool, scale: float
) -> jax.Array:
    # A row that only fills up a batch has no key; one is enough to stay finite.
    lengths_B = jnp.maximum(key_mask_BM.sum(axis=-1), 1).astype(jnp.int32)
    return jax.nn.dot_product_attention(
        q,
        k,
        v,
        scale=scale,
        is_causal=causal,
        key_value_seq_lengths=lengths_B,
        implementation="cudnn",
    )


def pallas_attention(
    q_BTHK: jax.Array,
    k_BMGK: jax.Array,
    v_BMGK: jax.Array,
    key_mask_BM: jax.Array,
    *,
    causal: bool,
    scale: float,
) -> jax.Array:
    """JAX's own flash attention kernel for TPUs, which wants whole blocks and all heads."""
    from jax.experimental.pallas.ops.tpu.flash_attention import SegmentIds, flash_attention

    repeats = q_BTHK.shape[2] // k_BMGK.shape[2]
    heads_first = [
        jnp.moveaxis(_padded(x), 2, 1)
        for x in (q_BTHK, jnp.repeat(k_BMGK, repeats, axis=2), jnp.repeat(v_BMGK, repeats, axis=2))
    ]
    # Queries look only at keys of their own segment: 1 for all of them and the real keys.
    keys_BM = _padded(key_mask_BM).astype(jnp.int32)
    queries_BT = jnp.ones((q_BTHK.shape[0], heads_first[0].shape[2]), jnp.int32)
    y_BHTK = flash_attention(
        *heads_first, segment_ids=SegmentIds(queries_BT, keys_BM), causal=causal, sm_scale=scale
    )
    return jnp.moveaxis(y_BHTK, 1, 2)[:, : q_BTHK.shape[1]].astype(v_BMGK.dtype)


def _padded(x: jax.Array) -> jax.Array:
    """[B, L, ...] with zeros up to a whole number of blocks."""
    return jnp.pad(x, [(0, 0), (0, -x.shape[1] % _PALLAS_BLOCK)] + [(0, 0)] * (x.ndim - 2))
