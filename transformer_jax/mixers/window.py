"""Sliding-window attention, with dilation (Longformer: Beltagy, Peters, Cohan 2020).

arXiv:2004.05150, section 3.1. A query at i reads the keys

    j = i + d m,   -w <= m <= w   (encoder)      -w <= m <= 0   (decoder)

with window w and dilation d; the softmax is over these alone. O(L w) time and memory,
computed in blocks; a decoding step is O(w) and keeps a ring of d (w + 1) keys and values,
however long the output. One layer sees w d tokens each way, n layers n w d.

One layer cannot read a token outside the window, nor, with d > 1, one between the multiples
of d. In a pattern such as `mixers=(Window(), Full())` other layers do so.
"""

from dataclasses import dataclass

import jax
import jax.numpy as jnp
from flax import struct
from pydantic import PositiveInt

from transformer_jax.mixers.base import Mixer, MixerContext
from transformer_jax.mixers.sparse_attention import SparseAttention, SparseConfig
from transformer_jax.ops.attention import Hooks
from transformer_jax.ops.partial_attention import QKV
from transformer_jax.ops.sparse_attention import window_part
from transformer_jax.positions.base import Position


@dataclass(frozen=True)
class Window(SparseConfig):
    """A window of at least the sequence's length is full attention."""

    window: PositiveInt = 128  #: keys seen on each side (decoder: behind) besides the token itself
    dilation: PositiveInt = 1  #: distance between the keys seen

    def build(self, context: MixerContext, position: Position) -> Mixer:
        return WindowAttention(self, context, position)


@struct.dataclass
class Ring:
    """The last W tokens of each of the d residue classes, keys and values [B, d, W, H, K].

    The token at position p is in class p % d, in slot (p // d) % W.
    """

    key: jax.Array
    value: jax.Array


class WindowAttention(SparseAttention):
    """Each token reads its neighbours."""

    config: Window

    def attend(self, qkv: QKV, mask_BL: jax.Array, hooks: Hooks) -> jax.Array:
        o, causal = self.config, self.context.causal
        return window_part(
            qkv, mask_BL, hooks, window=o.window, dilation=o.dilation, causal=causal
        ).value

    def init_state(self, batch: int, max_length: int) -> Ring:
        """Room for what a token can see, or for `max_length` tokens where that is less."""
        c = self.context
        dilation = min(self.config.dilation, max_length)
        slots = min(self.config.window + 1, -(-max_length // dilation))
        shape = (batch, dilation, slots, c.num_heads, c.head_dim)
        empty = jnp.zeros(shape, c.dtype)
        return Ring(key=empty, value=empty)

    def step(self, x_BD: jax.Array, state: Ring, position: jax.Array) -> tuple[jax.Array, Ring]:
        """Overwrites the oldest token of this residue class and attends to the class."""
        q_B1HK, k_B1HK, v_B1HK = self.heads.rotated(x_BD[:, None], self.position, position[None])
        _, dilation, slots, *_ = state.key.shape
        own_class, turn = position % dilation, position // dilation
        start = (0, own_class, turn % slots, 0, 0)

        def write(ring: jax.Array, new_B1HK: jax.Array) -> jax.Array:
            new = new_B1HK[:, None].astype(ring.dtype)
            return jax.lax.dynamic_update_slice(ring, new, start)

        def read(ring: jax.Array) -> jax.Array:
            return jax.lax.dynamic_index_in_dim(ring, own_class, axis=1, keepdims=False)

        ring = Ring(key=write(state.key, k_B1HK), value=write(state.value, v_B1HK))
        turns_ago_M = (turn - jnp.arange(slots)) % slots
        y_BD = self.attend_token(
            q_B1HK,
            read(ring.key),
            read(ring.value),
            turns_ago_M <= turn,
            position,
            position - turns_ago_M * dilation,
        )
        return y_BD, ring
