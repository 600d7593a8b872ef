"""The delta rule: a linear recurrence that erases what it held at a key before it writes there.

    S'_t = diag(w_t) S_{t-1}                          S: [K, V], 0 < w_t <= 1
    S_t  = S'_t + k_t (v_t - S'_t^T e_t)^T            y_t = S_t^T q_t

With e_t = b_t k_t, values scaled by b_t and keys of length 1 this is (gated) DeltaNet (Yang et al.
2024, arXiv:2406.06484 and 2412.06464), with one decay a channel Kimi's delta attention
(arXiv:2510.26692), with e_t and the scale of the values apart Gated DeltaNet-2
(arXiv:2605.22791). A zero e_t and v_t leave S'_t as it is.

What a token writes, u_t = v_t - S'_t^T e_t, depends on what those before it wrote. In a chunk of C
tokens that is a unit triangular system (the WY form of a product of reflections):

    (I + A) U = V - (E * decays since the start) S,       A[t, s] = e_t^T (decays s to t) k_s

It is solved by products, and a loop over the L/C chunks passes on the state. O(L C) time and
memory. Decays are logarithms <= 0 and no weight is a quotient, as in `ops.scans`. All in float32.
"""

from functools import partial

import jax
import jax.numpy as jnp
from jax import Array

from transformer_jax.ops.scans import (
    Inputs,
    by_chunks_and_heads,
    channel_decay_scores,
    head_decay_scores,
)
from transformer_jax.ops.sequences import unchunked


@partial(jax.checkpoint, static_argnums=(1,))
def delta_rule_scan(inputs: Inputs, chunk: int) -> tuple[Array, Array]:
    """The whole sequence, from a state of zeros.

    Args:
        inputs: queries [B, L, H, K], which read the state; keys [B, L, H, K], which write it;
            values [B, L, H, V]; keys of what is erased [B, L, H, K]; log decays of each head
            [B, L, H], or of each channel of its key [B, L, H, K].
        chunk: C, a power of two; the last chunk may be shorter.

    Returns:
        y [B, L, H, V] and the last state [B, H, K, V], float32.
    """
    length = inputs[2].shape[1]
    chunk = min(chunk, 1 << (length - 1).bit_length())
    q, k, v, e, w = (by_chunks_and_heads(x, chunk) for x in inputs)  # [B, L/C, H, C, ...]
    scores_of = head_decay_scores if w.ndim < k.ndim else channel_decay_scores
    (scores, erased), since, until, total = scores_of((q, e), k, w)
    solved = unit_lower_inverse(jnp.tril(erased, -1))
    parts = (solved @ v, solved @ (e * since), jnp.swapaxes(k * until, -1, -2), total)

    def turn(state: Array, part: tuple[Array, ...]) -> tuple[Array, tuple]:
        new, reads, keys, kept = part
        written = new - reads @ state
        return kept * state + keys @ written, (state, written)

    start = jnp.zeros((*k.shape[:1], *k.shape[2:3], k.shape[-1], v.shape[-1]), jnp.float32)
    moved = tuple(jnp.moveaxis(x, 1, 0) for x in parts)
    last, results = jax.lax.scan(turn, start, moved)
    states, written = (jnp.moveaxis(x, 0, 1) for x in results)
    y = scores @ written + (q * since) @ states  # [B, L/C, H, C, V]
    return unchunked(jnp.moveaxis(y, 3, 2), length), last


def delta_rule_step(inputs: Inputs, state_BHKV: Array) -> tuple[Array, Array]:
    """One position of `delta_rule_scan`: (y [B, H, V], the next state), float32."""
    *arrays, log_decay = inputs
    q_BHK, k_BHK, v_BHV, e_BHK = (x.astype(jnp.float32) for x in arrays)
    decay = jnp.exp(log_decay)
    kept_BHKV = state_BHKV * decay.reshape(*decay.shape[:2], -1, 1)
    written_BHV = v_BHV - jnp.einsum("bhk,bhkv->bhv", e_BHK, kept_BHKV)
    state_BHKV = kept_BHKV + k_BHK[..., None] * written_BHV[:, :, None]
    return jnp.einsum("bhk,bhkv->bhv", q_BHK, state_BHKV), state_BHKV


@jax.custom_vjp
def unit_lower_inverse(strictly_lower: Array) -> Array:
    """(I + A)^-1 of [..., C, C], C a power of two, by merging the inverses of diagonal blocks.

        [ P 0 ]^-1   [   P^-1          0  ]
        [ B Q ]    = [-Q^-1 B P^-1   Q^-1 ]

    Products are what devices are good at, and unlike sums of powers of A these stay small where
    keys repeat. In float32 also where products have fewer digits by default.
    """
    half = strictly_lower.shape[-1] // 2
    if half < 2:
        eye = jnp.eye(strictly_lower.shape[-1])
        return jax.lax.broadcast_to_rank(eye, strictly_lower.ndim) - strictly_lower
    blocks = [strictly_lower[..., :half, :half], strictly_lower[..., half:, half:]]
    first, second = jnp.split(unit_lower_inverse(jnp.concatenate(blocks)), 2)
    lower = -_product(_product(second, strictly_lower[..., half:, :half]), first)
    upper = jnp.concatenate([first, jnp.zeros_like(first)], axis=-1)
    return jnp.concatenate([upper, jnp.concatenate([lower, second], axis=-1)], axis=-2)


def _product(a: Array, b: Array) -> Array:
    return jnp.matmul(a, b, precision="highest")


def _forward(strictly_lower: Array) -> tuple[Array, Array]:
    inverse = unit_lower_inverse(strictly_lower)
    return inverse, inverse


def _backward(inverse: Array, change: Array) -> tuple[Array]:
    transposed = jnp.swapaxes(inverse, -1, -2)
    return (-_product(_product(transposed, change), transposed),)


unit_lower_inverse.defvjp(_forward, _backward)
