"""Softmax attention in blocks, with memory linear in the length.

The output is that of `ops.attention`; the [T, M] weights never exist. Keys are read
block by block, and a running maximum m and sum l correct what was added before (the
online softmax of Milakov and Gimelshein 2018, arXiv:1805.02867; as attention: Rabe and
Staats 2021, arXiv:2112.05682, and Dao et al. 2022, arXiv:2205.14135):

    m' = max(m, max_j s_j)
    l' = l e^(m - m') + sum_j e^(s_j - m')
    y' = y e^(m - m') + sum_j e^(s_j - m') v_j           output: y / l

Both loops are rematerialised, so the backward pass computes each block again and keeps
one block of scores at a time: O(L) memory, and O(L M) time as before.
"""

from collections.abc import Callable

import jax
import jax.numpy as jnp

from transformer_jax.ops.attention import attention_scores, weighted_values
from transformer_jax.ops.dropout import dropout
from transformer_jax.ops.masks import MASKED

#: [T] query and [M] key positions -> [H, T, M] float32, to add to the scores.
Bias = Callable[[jax.Array, jax.Array], jax.Array]

Running = tuple[jax.Array, jax.Array, jax.Array]  # m_BHT, l_BHT, y_BTHK


def blockwise_attention(
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
    block: int = 256,
) -> jax.Array:
    """Attends; returns [B, T, H, K] in the dtype of the values.

    Args:
        q_BTHK: queries, at positions 0 ... T-1.
        k_BMGK: keys, of H heads or of a divisor of H, at positions 0 ... M-1.
        v_BMGK: values, likewise.
        key_mask_BM: True at real keys. A row without any gives zeros.
        causal: a query sees the keys up to its own position.
        bias: additive bias, asked for block by block.
        scale: of the product; 1 / sqrt(K) unless given.
        dropout_rate: applied to the attention weights.
        dropout_key: None means no dropout.
        block: most queries and keys in a block.
    """
    length = q_BTHK.shape[1]
    block = min(block, max(length, k_BMGK.shape[1]))
    q_blocks = _blocks(q_BTHK, block)
    k_blocks, v_blocks = _blocks(k_BMGK, block), _blocks(v_BMGK, block)
    mask_blocks = _blocks(key_mask_BM, block)  # padded with False

    def attend(carry: None, numbered: tuple[jax.Array, jax.Array]) -> tuple[None, jax.Array]:
        number, q_BCHK = numbered
        q_positions = number * block + jnp.arange(block)
        key = None if dropout_key is None else jax.random.fold_in(dropout_key, number)

        def read(
            running: Running, keys: tuple[jax.Array, jax.Array, jax.Array, jax.Array]
        ) -> tuple[Running, None]:
            k_number, k_BCGK, v_BCGK, mask_BC = keys
            k_positions = k_number * block + jnp.arange(block)

            def seen(running: Running) -> Running:
                scores = attention_scores(q_BCHK, k_BCGK, scale=scale)
                if bias is not None:
                    scores = scores + bias(q_positions, k_positions)
                mask = mask_BC[:, None, None, :]
                if causal:
                    mask = mask & (k_positions <= q_positions[:, None])
                block_key = None if key is None else jax.random.fold_in(key, k_number)
                return _accumulate(running, scores, mask, v_BCGK, dropout_rate, block_key)

            if not causal:
                return seen(running), None
            in_future = k_number > number
            return jax.lax.cond(in_future, lambda running: running, seen, running), None

        batch, _, heads, _ = q_BCHK.shape
        start = (
            jnp.full((batch, heads, block), MASKED, jnp.float32),
            jnp.zeros((batch, heads, block), jnp.float32),
            jnp.zeros((batch, block, heads, v_BMGK.shape[-1]), jnp.float32),
        )
        numbers = jnp.arange(len(k_blocks))
        (_, sum_BHC, y_BCHK), _ = jax.lax.scan(
            jax.checkpoint(read), start, (numbers, k_blocks, v_blocks, mask_blocks)
        )
        # Where no key is real, y is 0 and the sum too.
        y_BCHK = y_BCHK / jnp.maximum(sum_BHC, 1e-30).swapaxes(1, 2)[..., None]
        return carry, y_BCHK.astype(v_BMGK.dtype)

    _, y_blocks = jax.lax.scan(jax.checkpoint(attend), None, (jnp.arange(len(q_blocks)), q_blocks))
    y_BTHK = jnp.moveaxis(y_blocks, 0, 1)
    return y_BTHK.reshape(y_BTHK.shape[0], -1, *y_BTHK.shape[3:])[:, :length]


def _accumulate(
    running: Running,
    scores_BHTC: jax.Array,
    mask_BHTC: jax.Array,
    v_BCGK: jax.Array,
    dropout_rate: float,
    dropout_key: jax.Array | None,
) -> Running:
    """One block of keys more."""
    max_BHT, sum_BHT, y_BTHK = running
    scores_BHTC = jnp.where(mask_BHTC, scores_BHTC, MASKED)
    # y / l does not depend on the maximum, so no gradient need pass through it.
    new_max_BHT = jax.lax.stop_gradient(jnp.maximum(max_BHT, scores_BHTC.max(axis=-1)))
    decay_BHT = jnp.exp(max_BHT - new_max_BHT)
    weights_BHTC = jnp.where(mask_BHTC, jnp.exp(scores_BHTC - new_max_BHT[..., None]), 0.0)
    # The weights' sum is that before dropout, as where a softmax is dropped from.
    kept_BHTC = dropout(weights_BHTC, dropout_rate, dropout_key)
    y_BTHK = y_BTHK * decay_BHT.swapaxes(1, 2)[..., None] + weighted_values(kept_BHTC, v_BCGK)
    return new_max_BHT, sum_BHT * decay_BHT + weights_BHTC.sum(axis=-1), y_BTHK


def _blocks(x: jax.Array, block: int) -> jax.Array:
    """[B, L, ...] -> [L / block, B, block, ...], padded at the end with zeros."""
    batch, length, *rest = x.shape
    x = jnp.pad(x, [(0, 0), (0, -length % block)] + [(0, 0)] * len(rest))
    return jnp.moveaxis(x.reshape(batch, -1, block, *rest), 1, 0)
