"""The linear maps around attention: queries, keys and values in, heads out."""

from typing import cast

import jax
import jax.numpy as jnp
from flax import linen as nn

from transformer_jax.layers.projections import Dense
from transformer_jax.mixers.base import MixerContext
from transformer_jax.ops.attention import Bias
from transformer_jax.ops.key_value_cache import KeyValueCache
from transformer_jax.ops.partial_attention import QKV
from transformer_jax.positions.base import Position


class HeadProjections(nn.Module):
    """W_q, W_k, W_v and W_o, with the head axis split out.

    Two options write the same maps in another way:

    `merged_query_key`: the scores x W_q,h W_k,h^T m^T depend only on the product of the two
    matrices, so a head can hold that product itself, W_h of [D, D]. Queries are x W_h, and the
    tokens m are their own keys, shared by all heads. The product is no longer limited to rank
    head_dim, and has D / (2 head_dim) times the parameters.

    `factored_value`: a head's value map D -> D is W_v,h ("down", to head_dim) times its
    block of W_o ("up"). With this option all heads share one "up": the sum of the heads
    is multiplied by a single [head_dim, D] matrix, as if the H blocks of W_o were equal.

    Attributes:
        context: the model's side of the configuration.
        num_kv_heads: heads of keys and values; None = num_heads.
        merged_query_key: see above.
        factored_value: see above.
        use_bias: of queries, values and the output.
        score_scale: of the query-key product; None = 1 / sqrt(head_dim).
    """

    context: MixerContext
    num_kv_heads: int | None = None
    merged_query_key: bool = False
    factored_value: bool = False
    use_bias: bool = True
    score_scale: float | None = None

    def setup(self) -> None:
        c = self.context
        width = c.num_heads * c.head_dim
        kv_width = (self.num_kv_heads or c.num_heads) * c.head_dim
        heads = ("embed", "heads")
        dtypes = {"use_bias": self.use_bias} | c.dtypes
        if self.merged_query_key:
            # The deviation of the product of two matrices of the default initialisation.
            deviation = c.head_dim**0.5 * 2.0 / (c.d_model + width)
            init = nn.initializers.normal(deviation)
            self.query = Dense(
                c.d_model, c.num_heads * c.d_model, heads, kernel_init=init, **dtypes
            )
        else:
            self.query = Dense(c.d_model, width, heads, **dtypes)
            # A bias on the keys adds the same number to all scores of a query: no effect.
            self.key = Dense(c.d_model, kv_width, heads, use_bias=False, **c.dtypes)
        self.value = Dense(c.d_model, kv_width, heads, **dtypes)
        if self.factored_value:
            self.out = Dense(c.head_dim, c.d_model, ("head_dim", "embed"), **dtypes)
        else:
            self.out = Dense(width, c.d_model, ("heads", "embed"), **dtypes)

    @property
    def scale(self) -> float:
        """Factor of the query-key product, also if the two are merged."""
        return self.score_scale or self.context.head_dim**-0.5

    def empty_cache(self, batch: int, room: int) -> KeyValueCache:
        """For the keys and values of `room` tokens of each of `batch` hypotheses."""
        c = self.context
        values = (self.num_kv_heads or c.num_heads, c.head_dim)
        keys = (1, c.d_model) if self.merged_query_key else values
        return KeyValueCache.empty(batch, room, keys, values, c.dtype)

    def queries(self, x: jax.Array) -> jax.Array:
        """[..., D] -> [..., H, K]; if merged, [..., H, D]."""
        return self.query.split(x, self.context.num_heads)

    def keys_values(self, x: jax.Array) -> tuple[jax.Array, jax.Array]:
        """[..., D] -> keys and values [..., G, K]; if merged, the keys are [..., 1, D]."""
        groups = self.num_kv_heads or self.context.num_heads
        keys = x[..., None, :] if self.merged_query_key else self.key.split(x, groups)
        return keys, self.value.split(x, groups)

    def rotated(self, x_BLD: jax.Array, position: Position, at_L: jax.Array) -> QKV:
        """Queries and keys of tokens at positions `at_L`, turned by the scheme, and values."""
        keys, values = self.keys_values(x_BLD)
        queries, keys = position.rotate(self.queries(x_BLD), keys, at_L, at_L)
        return queries, keys, values

    def of_token(
        self, x_BD: jax.Array, position: Position, at: jax.Array
    ) -> tuple[jax.Array, jax.Array, jax.Array]:
        """As `rotated`, for one token of each row, at the scalar position `at`: [B, heads, K]."""
        queries, keys, values = self.rotated(x_BD[:, None], position, at[None])
        return queries[:, 0], keys[:, 0], values[:, 0]

    def join(self, heads: jax.Array) -> jax.Array:
        """[..., H, K] -> [..., D]."""
        if self.factored_value:
            return self.out(heads.sum(axis=-2))
        return self.out.join(heads)


def bias_of(position: Position) -> Bias | None:
    """The scheme's bias as a function of query and key positions, or None if it has none.

    Asks for one pair to find out, which also creates the scheme's parameters: inside a loop
    over blocks it would be too late for that.
    """
    first_1 = jnp.zeros(1, jnp.int32)
    return cast(Bias, position.bias) if position.bias(first_1, first_1) is not None else None


def token_bias(position: Position, at: jax.Array, key_positions: jax.Array) -> jax.Array | None:
    """The scheme's bias [H, M] for a query at the scalar position `at`, or None."""
    bias_H1M = position.bias(at[None], key_positions)
    return None if bias_H1M is None else bias_H1M[:, 0]
