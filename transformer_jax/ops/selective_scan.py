"""Mamba's selective scan (Gu and Dao 2023, arXiv:2312.00752, algorithm 2).

    h_t = exp(delta_t A) h_{t-1} + delta_t B_t x_t        h: [E, N]
    y_t = h_t C_t

A is diagonal and negative, so every factor is in (0, 1]. O(L E N) time. States exist for one
chunk of C positions at a time; the backward pass recomputes them from the state at the chunk's
start. So memory is O(B E (L + N (C + L/C))), and never [B, L, E, N]. All in float32.
"""

from collections.abc import Callable
from functools import partial

import jax
import jax.numpy as jnp
from jax import Array

from transformer_jax.ops.platform import by_platform
from transformer_jax.ops.scans import Inputs
from transformer_jax.ops.sequences import chunked, unchunked

Element = tuple[Array, Array]
#: (A, the state before a chunk, its inputs) -> the state after it, and its outputs [C, B, E].
Form = Callable[..., tuple[Array, Array]]

#: Tokens of the batch that a chunk has at least where the device is not a CPU: there a step of a
#: loop takes microseconds, however little there is to compute.
_TOKENS = 256


def selective_scan(inputs: Inputs, chunk: int) -> Array:
    """The recurrence in chunks, each by an associative scan; on a CPU position by position.

    Args:
        inputs: x [B, L, E]; step sizes [B, L, E], >= 0: with 0 the state does not change; the
            diagonal of A [E, N], negative; B [B, L, N], which writes the state; C [B, L, N], which
            reads it.
        chunk: C, or more where the device is not a CPU; the last chunk may be shorter.

    Returns:
        y [B, L, E], float32.
    """
    x_BLE, delta_BLE, a_EN, b_BLN, c_BLN = inputs
    batch, length, _ = x_BLE.shape
    moved = (jnp.moveaxis(x.astype(jnp.float32), 1, 0) for x in (x_BLE, delta_BLE, b_BLN, c_BLN))
    y_LBE = by_platform(
        _in_chunks,
        (a_EN, *moved),
        cpu=(_one_by_one, min(chunk, length)),
        other=(_associatively, min(max(chunk, _TOKENS // batch), length)),
    )
    return jnp.moveaxis(y_LBE, 0, 1)


def selective_step(inputs: Inputs, state_BEN: Array) -> tuple[Array, Array]:
    """One position of `selective_scan`: (y [B, E], the next state), float32."""
    x_BE, delta_BE, a_EN, b_BN, c_BN = inputs
    decay_BEN, written_BEN = _decay_and_input(x_BE, delta_BE, a_EN, b_BN)
    state_BEN = decay_BEN * state_BEN + written_BEN
    return jnp.einsum("ben,bn->be", state_BEN, c_BN.astype(jnp.float32)), state_BEN


def _in_chunks(arrays: tuple[Array, ...], form_and_chunk: tuple[Form, int]) -> Array:
    """y [L, B, E], from inputs [L, B, E or N].

    On a CPU the positions are computed one by one: each of the few steps of the associative
    scan moves several arrays of all states through memory, which took seven times as long.
    """
    a_EN, *inputs = arrays
    form, chunk = form_and_chunk
    of_chunk = jax.checkpoint(form, prevent_cse=False)  # the scan around it does that already
    # [L/C, C, B, E or N]; a step of size 0, as in the padding, leaves the state unchanged.
    chunks = tuple(chunked(x, chunk, axis=0) for x in inputs)
    empty_BEN = jnp.zeros((inputs[0].shape[1], *a_EN.shape), jnp.float32)
    _, y = jax.lax.scan(lambda state, x: of_chunk(a_EN, state, *x), empty_BEN, chunks)
    return unchunked(y, len(inputs[0]), axis=0)


def _one_by_one(a_EN: Array, state_BEN: Array, *chunk: Array) -> tuple[Array, Array]:
    @partial(jax.checkpoint, prevent_cse=False)  # only the state of each turn is kept
    def turn(state_BEN: Array, at: tuple[Array, ...]) -> tuple[Array, Array]:
        x_BE, delta_BE, b_BN, c_BN = at
        y_BE, state_BEN = selective_step((x_BE, delta_BE, a_EN, b_BN, c_BN), state_BEN)
        return state_BEN, y_BE

    return jax.lax.scan(turn, state_BEN, chunk)


def _associatively(
    a_EN: Array, state_BEN: Array, x_CBE: Array, delta_CBE: Array, b_CBN: Array, c_CBN: Array
) -> tuple[Array, Array]:
    elements = _decay_and_input(x_CBE, delta_CBE, a_EN, b_CBN)
    decay_CBEN, written_CBEN = jax.lax.associative_scan(_compose, elements)
    states_CBEN = decay_CBEN * state_BEN[None] + written_CBEN
    return states_CBEN[-1], jnp.einsum("cben,cbn->cbe", states_CBEN, c_CBN)


def _decay_and_input(x: Array, delta: Array, a_EN: Array, b: Array) -> Element:
    """[..., E] and [..., N] -> the two factors of the recurrence, each [..., E, N]."""
    delta = delta.astype(jnp.float32)
    written = (delta * x.astype(jnp.float32))[..., None] * b.astype(jnp.float32)[..., None, :]
    a = jax.lax.broadcast_to_rank(a_EN, delta.ndim + 1)
    return jnp.exp(delta[..., None] * a), written


def _compose(earlier: Element, later: Element) -> Element:
    """Two affine maps h -> decay h + written, one after the other."""
    return earlier[0] * later[0], later[0] * earlier[1] + later[1]
