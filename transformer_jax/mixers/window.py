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
from typing import ClassVar

import jax.numpy as jnp
from jax import Array
from pydantic import PositiveInt

from transformer_jax.mixers.base import Mixer, State
from transformer_jax.mixers.heads import token_bias
from transformer_jax.mixers.sparse_attention import SparseAttention, SparseConfig
from transformer_jax.ops.attention import QKV, Hooks
from transformer_jax.ops.key_value_cache import KeyValueCache, attend_to_cache
from transformer_jax.ops.sparse_attention import Neighbours, window_part


class WindowAttention(SparseAttention):
    """Each token reads its neighbours."""

    config: "Window"

    def attend(self, qkv: QKV, mask_BL: Array, hooks: Hooks) -> Array:
        near = Neighbours(self.config.window, self.config.dilation, self.context.causal)
        return window_part(qkv, mask_BL, hooks, near).value

    @property
    def ring(self) -> int:
        """Tokens kept: those that a token can see, or all where there are never more."""
        dilation = self.config.dilation
        return dilation * min(self.config.window + 1, -(-self.context.max_length // dilation))

    def init_state(self, batch: int, max_length: int) -> KeyValueCache:
        """Room for the last `ring` tokens; the one at position p is in place p % ring."""
        return self.heads.empty_cache(batch, min(self.ring, max_length))

    def step(self, x_BD: Array, state: KeyValueCache, position: Array) -> tuple[Array, State]:
        """Overwrites the oldest token and attends to those that the window still holds."""
        q_BHK, k_BHK, v_BHK = self.heads.of_token(x_BD, self.position, position)
        cache = state.write(k_BHK, v_BHK, position % self.ring)
        dilation = self.config.dilation
        if dilation == 1:
            at_T, seen, length = jnp.arange(cache.room), cache, jnp.minimum(position + 1, self.ring)
        else:
            at_T = position % dilation + dilation * jnp.arange(self.ring // dilation)
            seen, length = cache.at(at_T), None
        tokens_ago_T = (position - at_T) % self.ring
        reads_T = (at_T < self.ring) & (tokens_ago_T <= position)
        bias_HT = token_bias(self.position, position, position - tokens_ago_T)
        y_BHK = attend_to_cache(q_BHK, seen, reads_T, bias_HT, length=length)
        return self.heads.join(y_BHK), cache


@dataclass(frozen=True)
class Window(SparseConfig):
    """A window of at least the sequence's length is full attention."""

    module: ClassVar[type[Mixer]] = WindowAttention

    window: PositiveInt = 128  #: keys seen on each side (decoder: behind) besides the token itself
    dilation: PositiveInt = 1  #: distance between the keys seen
