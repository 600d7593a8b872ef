"""Multi-head scaled dot-product attention (Vaswani et al. 2017, arXiv:1706.03762).

    head_h = softmax(x W_q,h (m W_k,h)^T / sqrt(head_dim)) m W_v,h
    y = [head_1 ... head_H] W_o

with m = x (self-attention) or the encoder's memory (cross-attention). O(L^2) time
and memory in training; a decoding step is O(L) and keeps keys and values of every
token so far.
"""

from dataclasses import dataclass
from typing import ClassVar

import jax
import jax.numpy as jnp
from flax import linen as nn
from flax import struct

from transformer_jax.layers.dropout import Dropout
from transformer_jax.layers.projections import Dense
from transformer_jax.mixers.base import CrossMixer, Mixer, MixerContext
from transformer_jax.ops.attention import attention_weights, dot_product_attention
from transformer_jax.ops.masks import attention_mask


@dataclass(frozen=True)
class FullAttentionOptions:
    """Full attention has no options of its own yet; heads are the model's."""


@struct.dataclass
class KeyValueCache:
    """Keys and values of the tokens so far, [B, max_length, H, K] each."""

    key: jax.Array
    value: jax.Array


@struct.dataclass
class Memory:
    """The projected memory: keys and values [B, M, H, K] and its mask [B, M]."""

    key: jax.Array
    value: jax.Array
    mask: jax.Array


class HeadProjections(nn.Module):
    """W_q, W_k, W_v and W_o, with the head axis split out."""

    context: MixerContext

    def setup(self) -> None:
        c = self.context
        width = c.num_heads * c.head_dim
        self.query = Dense(c.d_model, width, ("embed", "heads"), **c.dtypes)
        # A bias on the keys adds the same number to all scores of a query: no effect.
        self.key = Dense(c.d_model, width, ("embed", "heads"), use_bias=False, **c.dtypes)
        self.value = Dense(c.d_model, width, ("embed", "heads"), **c.dtypes)
        self.out = Dense(width, c.d_model, ("heads", "embed"), **c.dtypes)

    def split(self, x: jax.Array) -> jax.Array:
        """[..., H * K] -> [..., H, K]."""
        return x.reshape(*x.shape[:-1], self.context.num_heads, self.context.head_dim)

    def queries(self, x: jax.Array) -> jax.Array:
        """[..., D] -> [..., H, K]."""
        return self.split(self.query(x))

    def keys_values(self, x: jax.Array) -> tuple[jax.Array, jax.Array]:
        """[..., D] -> twice [..., H, K]."""
        return self.split(self.key(x)), self.split(self.value(x))

    def join(self, heads: jax.Array) -> jax.Array:
        """[..., H, K] -> [..., D]."""
        return self.out(heads.reshape(*heads.shape[:-2], -1))


class FullAttention(Mixer):
    """Self-attention over the whole sequence, or over the past in the decoder."""

    Options = FullAttentionOptions
    quadratic: ClassVar[bool] = True

    def setup(self) -> None:
        self.heads = HeadProjections(self.context)
        self.weight_dropout = Dropout(self.context.attention_dropout_rate)

    def __call__(self, x_BLD: jax.Array, mask_BL: jax.Array, *, deterministic: bool) -> jax.Array:
        """See `Mixer`."""
        positions_L = jnp.arange(x_BLD.shape[1])
        q_BLHK = self.heads.queries(x_BLD)
        k_BLHK, v_BLHK = self.heads.keys_values(x_BLD)
        q_BLHK, k_BLHK = self.position.rotate(q_BLHK, k_BLHK, positions_L, positions_L)
        mask_B1LL = attention_mask(mask_BL, causal=self.context.causal)
        bias_HLL = self.position.bias(positions_L, positions_L)
        _show_weights(self, q_BLHK, k_BLHK, mask_B1LL, bias_HLL)
        y_BLHK = dot_product_attention(
            q_BLHK,
            k_BLHK,
            v_BLHK,
            mask_B1LL,
            bias_HLL,
            dropout_rate=self.context.attention_dropout_rate,
            dropout_key=self.weight_dropout.key(deterministic),
        )
        return self.heads.join(y_BLHK)

    def init_state(self, batch: int, max_length: int) -> KeyValueCache:
        """Room for `max_length` tokens."""
        c = self.context
        empty = jnp.zeros((batch, max_length, c.num_heads, c.head_dim), c.dtypes["dtype"])
        return KeyValueCache(key=empty, value=empty)

    def step(
        self, x_BD: jax.Array, state: KeyValueCache, position: jax.Array
    ) -> tuple[jax.Array, KeyValueCache]:
        """Writes this token's key and value at `position` and attends to those so far."""
        x_B1D = x_BD[:, None]
        here_1 = position[None]
        slots_M = jnp.arange(state.key.shape[1])
        k_B1HK, v_B1HK = self.heads.keys_values(x_B1D)
        q_B1HK, k_B1HK = self.position.rotate(self.heads.queries(x_B1D), k_B1HK, here_1, here_1)
        start = (0, position, 0, 0)
        cache = KeyValueCache(
            key=jax.lax.dynamic_update_slice(state.key, k_B1HK.astype(state.key.dtype), start),
            value=jax.lax.dynamic_update_slice(
                state.value, v_B1HK.astype(state.value.dtype), start
            ),
        )
        y_B1HK = dot_product_attention(
            q_B1HK,
            cache.key,
            cache.value,
            (slots_M <= position)[None, None, None, :],
            self.position.bias(here_1, slots_M),
        )
        return self.heads.join(y_B1HK)[:, 0], cache


class FullCrossAttention(CrossMixer):
    """Every target position attends to every real source position."""

    Options = FullAttentionOptions
    quadratic: ClassVar[bool] = True

    def setup(self) -> None:
        self.heads = HeadProjections(self.context)
        self.weight_dropout = Dropout(self.context.attention_dropout_rate)

    def project(self, memory_BMD: jax.Array, mask_BM: jax.Array) -> Memory:
        """Keys and values of the memory, once a sentence."""
        key, value = self.heads.keys_values(memory_BMD)
        return Memory(key=key, value=value, mask=mask_BM)

    def read(self, x_BTD: jax.Array, projected: Memory, *, deterministic: bool) -> jax.Array:
        """See `CrossMixer`."""
        q_BTHK = self.heads.queries(x_BTD)
        mask_B11M = attention_mask(projected.mask, causal=False)
        _show_weights(self, q_BTHK, projected.key, mask_B11M, None)
        y_BTHK = dot_product_attention(
            q_BTHK,
            projected.key,
            projected.value,
            mask_B11M,
            dropout_rate=self.context.attention_dropout_rate,
            dropout_key=self.weight_dropout.key(deterministic),
        )
        return self.heads.join(y_BTHK)


def _show_weights(
    module: nn.Module, q: jax.Array, k: jax.Array, mask: jax.Array, bias: jax.Array | None
) -> None:
    """Puts the weights where `transformer_jax.inspect` finds them, if it is looking."""
    if module.is_mutable_collection("intermediates") and not module.is_initializing():
        module.sow("intermediates", "attention_weights", attention_weights(q, k, mask, bias))
