"""The linear maps around attention: queries, keys and values in, heads out."""

from typing import cast

import jax.numpy as jnp
from flax import linen as nn
from jax import Array

from transformer_jax.mixers.base import MixerContext
from transformer_jax.ops.attention import QKV, Bias
from transformer_jax.ops.key_value_cache import KeyValueCache
from transformer_jax.positions.base import Position


class HeadProjections(nn.Module):
    """W_q, W_k, W_v and W_o, with the head axis split out.

    Attributes:
        context: the model's side of the configuration.
        num_kv_heads: heads of keys and values; None = num_heads.
        use_bias: of queries, values and the output.
    """

    context: MixerContext
    num_kv_heads: int | None = None
    use_bias: bool = True

    def setup(self) -> None:
        c = self.context
        self.groups = self.num_kv_heads or c.num_heads
        width, kv_width = c.num_heads * c.head_dim, self.groups * c.head_dim
        heads = ("embed", "heads")
        self.query = c.linear(c.d_model, width, heads, use_bias=self.use_bias)
        # A bias on the keys adds the same number to all scores of a query: no effect.
        self.key = c.linear(c.d_model, kv_width, heads)
        self.value = c.linear(c.d_model, kv_width, heads, use_bias=self.use_bias)
        self.out = c.linear(width, c.d_model, ("heads", "embed"), use_bias=self.use_bias)

    def empty_cache(self, batch: int, room: int) -> KeyValueCache:
        """For the keys and values of `room` tokens of each of `batch` hypotheses."""
        c = self.context
        return KeyValueCache.empty(batch, room, self.groups, c.head_dim, c.dtype)

    def queries(self, x: Array) -> Array:
        """[..., D] -> [..., H, K]."""
        return self.query.split(x, self.context.num_heads)

    def keys_values(self, x: Array) -> tuple[Array, Array]:
        """[..., D] -> keys and values [..., G, K]."""
        return self.key.split(x, self.groups), self.value.split(x, self.groups)

    def rotated(self, x_BLD: Array, position: Position, at_L: Array) -> QKV:
        """Queries and keys of tokens at positions `at_L`, turned by the scheme, and values."""
        keys, values = self.keys_values(x_BLD)
        queries, keys = position.rotate(self.queries(x_BLD), keys, at_L, at_L)
        return queries, keys, values

    def of_token(self, x_BD: Array, position: Position, at: Array) -> tuple[Array, Array, Array]:
        """As `rotated`, for one token of each row, at the scalar position `at`: [B, heads, K]."""
        queries, keys, values = self.rotated(x_BD[:, None], position, at[None])
        return queries[:, 0], keys[:, 0], values[:, 0]

    def join(self, heads: Array) -> Array:
        """[..., H, K] -> [..., D]."""
        return self.out.join(heads)


def bias_of(position: Position) -> Bias | None:
    """The scheme's bias as a function of query and key positions, or None if it has none.

    Asks for one pair to find out, which also creates the scheme's parameters: inside a loop
    over blocks it would be too late for that.
    """
    first_1 = jnp.zeros(1, jnp.int32)
    return cast(Bias, position.bias) if position.bias(first_1, first_1) is not None else None


def token_bias(position: Position, at: Array, key_positions: Array) -> Array | None:
    """The scheme's bias [H, M] for a query at the scalar position `at`, or None."""
    bias_H1M = position.bias(at[None], key_positions)
    return None if bias_H1M is None else bias_H1M[:, 0]
