"""Reformer's LSH attention (Kitaev, Kaiser & Levskaya 2020, arXiv:2001.04451).

    q = x W_qk,   k = q / |q|,   y_i = softmax over {j: h(q_j) = h(q_i)} of q_i k_j, on v_j

A query attends to the keys of its own bucket under a random angular hash, in several
rounds of hashing weighted by their log-sum-exp; see `ops.lsh_attention` for the sorting,
the chunks and the causal form. Queries and keys are one projection, keys are normalised,
and a token attends to itself only if it has nothing else.

O(L log L) time for the sort and O(L C) for the scores, where C is the chunk. A decoding
step is O(rounds C) at any position; the cache keeps keys and values of all tokens, and
for each bucket the positions of its last C tokens. It is an approximation: it misses keys
that are in another bucket than their query in every round, and keys more than C tokens
back in a crowded bucket. Hashing is by argmax, so in rare cases two roundings of one
number put a token into two buckets; "step equals parallel" holds up to that. If
max_length <= chunk there is one bucket, and this is full attention with shared queries
and keys. The paper's reversible residuals are not here: `model.remat` saves the same memory.
"""

import math
from dataclasses import dataclass
from typing import ClassVar

import jax.numpy as jnp
from flax import struct
from jax import Array
from pydantic import NonNegativeInt, PositiveInt

from transformer_jax.errors import UserError
from transformer_jax.layers.dropout import Dropout, DropoutRate
from transformer_jax.layers.projections import Dense
from transformer_jax.mixers.base import Mixer, MixerConfig, MixerContext, Refusals
from transformer_jax.ops.attention import QKV
from transformer_jax.ops.key_value_cache import KeyValueCache
from transformer_jax.ops.lsh_attention import (
    hash_buckets,
    hash_rotations,
    lsh_attention,
    lsh_attention_step,
    unit_keys,
)

#: More buckets than this are hashed as a product of two numbers.
_LARGEST_FACTOR = 64


def bucket_factors(options: "Reformer", max_length: int) -> tuple[int, ...]:
    """Even numbers whose product is the number of buckets; none for one bucket."""
    buckets = options.buckets
    if not buckets:
        if max_length <= options.chunk:
            return ()
        buckets = 1 << int(math.log2(2 * max_length / options.chunk))
    if buckets == 1:
        return ()
    is_power_of_2 = buckets & (buckets - 1) == 0
    if buckets > _LARGEST_FACTOR and is_power_of_2:
        first = 1 << (buckets.bit_length() - 1) // 2
        return (first, buckets // first)
    return (buckets,)


@struct.dataclass
class BucketCache:
    """What decoding keeps of the tokens so far.

    Attributes:
        tokens: keys, of norm 1, and values of H heads.
        place: int32 [B, H, J, buckets, C], positions of each bucket's last C tokens.
        count: int32 [B, H, J, buckets], tokens of each bucket so far.
    """

    tokens: KeyValueCache
    place: Array
    count: Array


class LshAttention(Mixer):
    """Self-attention within hash buckets."""

    config: "Reformer"

    def setup(self) -> None:
        c, options = self.context, self.config
        width = c.num_heads * c.head_dim
        # A bias would pull all tokens into one bucket.
        self.query_key = c.linear(c.d_model, width, ("embed", "heads"))
        self.value = Dense(c.d_model, width, ("embed", "heads"), **c.dtypes)
        self.out = Dense(width, c.d_model, ("heads", "embed"), **c.dtypes)
        self.weight_dropout = Dropout(options.dropout_rate)
        self.factors = bucket_factors(options, c.max_length)
        # With one bucket all rounds are the same round.
        self.rounds = options.rounds if self.factors else 1
        self.rotations = hash_rotations(self.factors, self.rounds, c.head_dim, options.seed)

    def __call__(self, x_BLD: Array, mask_BL: Array) -> Array:
        qkv, bucket_BLHJ = self._projected(x_BLD, jnp.arange(x_BLD.shape[1]))
        chunk, causal, drop = self.config.chunk, self.context.causal, self.weight_dropout
        y_BLHK = lsh_attention(qkv, bucket_BLHJ, mask_BL, chunk, drop, causal=causal)
        return self.out.join(y_BLHK.astype(qkv[2].dtype))

    def init_state(self, batch: int, max_length: int) -> BucketCache:
        """Room for `max_length` tokens, and a ring of positions for each bucket."""
        c = self.context
        rings = (batch, c.num_heads, self.rounds, math.prod(self.factors))
        return BucketCache(
            tokens=KeyValueCache.empty(batch, max_length, c.num_heads, c.head_dim, c.dtype),
            place=jnp.zeros((*rings, min(self.config.chunk, max_length)), jnp.int32),
            count=jnp.zeros(rings, jnp.int32),
        )

    def step(self, x_BD: Array, state: BucketCache, position: Array) -> tuple[Array, BucketCache]:
        """Attends to the last keys of this token's bucket, then enters the bucket."""
        qkv, bucket_B1HJ = self._projected(x_BD[:, None], position[None])
        q_BHK, k_BHK, v_BHK, bucket_BHJ = (x[:, 0] for x in (*qkv, bucket_B1HJ))
        place_BHJ1C = jnp.take_along_axis(state.place, bucket_BHJ[..., None, None], axis=3)
        place_BHJC = place_BHJ1C[..., 0, :]
        count_BHJ = jnp.take_along_axis(state.count, bucket_BHJ[..., None], axis=3)[..., 0]
        size = place_BHJC.shape[-1]
        b, h = jnp.arange(x_BD.shape[0]), jnp.arange(self.context.num_heads)
        here = (b[:, None, None], h[:, None], jnp.arange(self.rounds), bucket_BHJ)
        cache = BucketCache(
            tokens=state.tokens.write(k_BHK, v_BHK, position),
            place=state.place.at[(*here, count_BHJ % size)].set(position),
            count=state.count.at[here].add(1),
        )
        last = (place_BHJC, cache.tokens.rows(place_BHJC), h[:, None, None])
        past = cache.tokens.key[last], cache.tokens.value[last]
        is_past_BHJC = jnp.arange(size)[None, None, None] < count_BHJ[..., None]
        y_BHK = lsh_attention_step(q_BHK, v_BHK, *past, is_past_BHJC)
        return self.out.join(y_BHK.astype(v_BHK.dtype)), cache

    def _projected(self, x_BLD: Array, positions_L: Array) -> tuple[QKV, Array]:
        """Queries, keys, values and buckets; rotations of positions come after the hash."""
        c = self.context
        qk_BLHK = self.query_key.split(x_BLD, c.num_heads)
        v_BLHK = self.value.split(x_BLD, c.num_heads)
        bucket_BLHJ = hash_buckets(qk_BLHK, self.rotations, self.factors)
        q_BLHK, k_BLHK = self.position.rotate(
            qk_BLHK, unit_keys(qk_BLHK).astype(qk_BLHK.dtype), positions_L, positions_L
        )
        return (q_BLHK, k_BLHK, v_BLHK), bucket_BLHJ


@dataclass(frozen=True)
class Reformer(MixerConfig):
    """Options of LSH attention."""

    module: ClassVar[type[Mixer]] = LshAttention
    refuses: ClassVar[Refusals] = {"cross": "its queries are its keys, so both are of one sequence"}
    honours: ClassVar[frozenset[str]] = frozenset({"rotate"})

    chunk: PositiveInt = 64
    #: C, tokens in a block; in the decoder, keys that a query sees of its bucket
    rounds: PositiveInt = 4  #: hashes; more of them miss fewer keys, at the same cost each
    buckets: PositiveInt | None = None
    #: 1 or an even number; None = the power of 2 next below 2 max_length / chunk
    seed: NonNegativeInt = 0  #: of the hash, the same in every layer and head
    dropout_rate: DropoutRate = 0.0  #: of the attention weights

    def check(self, context: MixerContext, hooks: frozenset[str]) -> None:
        if self.buckets is not None and self.buckets > 1 and self.buckets % 2:
            raise UserError(
                f"buckets={self.buckets}: the hash has a bucket for each direction and its "
                "opposite; give an even number, 1, or leave it out"
            )
