"""Keys and values of the tokens so far, and attention of one token to them.

A decoding step is bound by the memory that it moves. So the cache leads with the tokens: a token
is written, and hypotheses are selected, in rows that lie together in memory, and only the part
that has been written is read. The attention is computed block by block with a running maximum and
sum (Milakov and Gimelshein 2018, arXiv:1805.02867). Scores and weights are float32.

Axes: T room for tokens, N hypotheses of all sentences, sentence by sentence; H query heads, G key
heads and J value heads, both of which divide H.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax

from transformer_jax.ops.attention import MASKED

#: A cache is read and reordered in at most this many blocks, of at least `_LEAST_BLOCK` tokens.
_MOST_BLOCKS = 8
_LEAST_BLOCK = 8


class KeyValueCache(NamedTuple):
    """A decoder state whose leaves lead with tokens; the axis of hypotheses is the second."""

    key: jax.Array  #: [T, N, G, K]
    value: jax.Array  #: [T, N, J, V]

    @property
    def room(self) -> int:
        """T."""
        return self.key.shape[0]

    @classmethod
    def empty(
        cls, batch: int, room: int, key: tuple[int, int], value: tuple[int, int], dtype: Any
    ) -> "KeyValueCache":
        """Zeros, for at least `room` tokens of `batch` hypotheses.

        Args:
          key: heads and width of one token's keys.
          value: heads and width of one token's values.
        """
        block = _block(room)
        room = -(-room // block) * block
        return cls(*(jnp.zeros((room, batch, *shape), dtype) for shape in (key, value)))

    def at(self, places: jax.Array) -> "KeyValueCache":
        """The tokens at these places [M] alone."""
        return KeyValueCache(self.key[places], self.value[places])

    def write(self, k_NGK: jax.Array, v_NJV: jax.Array, place: jax.Array) -> "KeyValueCache":
        """With a token's key and value at `place`.

        Read the returned cache, not this one: otherwise XLA keeps a copy of all of it.
        """
        return KeyValueCache(
            *(
                lax.dynamic_update_index_in_dim(old, new.astype(old.dtype), place, axis=0)
                for old, new in zip(self, (k_NGK, v_NJV), strict=True)
            )
        )

    def select(self, parents_BZ: jax.Array, length: jax.Array) -> "KeyValueCache":
        """Each hypothesis with the tokens of its parent, a hypothesis of the same sentence.

        Only the first `length` places are selected; those after them are not to be read.
        """
        block = _block(self.room)
        index_1BZ11 = parents_BZ[None, :, :, None, None]

        def select(index: jax.Array, cache: KeyValueCache) -> KeyValueCache:
            def of_parents(leaf: jax.Array) -> jax.Array:
                part = lax.dynamic_slice_in_dim(leaf, index * block, block)
                split = part.reshape(block, *parents_BZ.shape, *part.shape[2:])
                split = jnp.take_along_axis(split, index_1BZ11, axis=2, mode="promise_in_bounds")
                return lax.dynamic_update_slice_in_dim(
                    leaf, split.reshape(part.shape), index * block, axis=0
                )

            return KeyValueCache(*map(of_parents, cache))

        return lax.fori_loop(0, (length + block - 1) // block, select, self)


def map_state(
    function: Callable[[jax.Array], jax.Array],
    of_cache: Callable[[KeyValueCache], KeyValueCache],
    state: Any,
) -> Any:
    """A decoder state with `function` applied to its leaves, and `of_cache` to its caches."""

    def is_cache(node: Any) -> bool:
        return isinstance(node, KeyValueCache)

    return jax.tree.map(
        lambda node: of_cache(node) if is_cache(node) else function(node), state, is_leaf=is_cache
    )


def attend_to_cache(
    q_NHK: jax.Array,
    cache: KeyValueCache,
    reads_T: jax.Array,
    bias_HT: jax.Array | None = None,
    *,
    length: jax.Array | None = None,
    scale: float | None = None,
) -> jax.Array:
    """The attention of one token of each hypothesis, [N, H, V] in the dtype of the values.

    Args:
        reads_T: True where the token reads; at least one of the first `length` places.
        bias_HT: added to the scores.
        length: int32, places from here on are not read; None reads the whole cache at once.
        scale: of the product of query and key; 1 / sqrt(K) unless given.
    """
    num_rows, heads, width = q_NHK.shape
    key_heads, (value_heads, value_width) = cache.key.shape[2], cache.value.shape[2:]
    q_NHK = q_NHK * (width**-0.5 if scale is None else scale)
    q_NGRK = q_NHK.reshape(num_rows, key_heads, -1, width)
    block = cache.room if length is None else _block(cache.room)
    num_blocks = 1 if length is None else (length + block - 1) // block

    def add_block(index: jax.Array, so_far: tuple[jax.Array, ...]) -> tuple[jax.Array, ...]:
        top_NH, total_NH, sum_NHV = so_far

        def part(x: jax.Array, axis: int = 0) -> jax.Array:
            return lax.dynamic_slice_in_dim(x, index * block, block, axis)

        scores_CNGR = jnp.einsum(
            "cngk,ngrk->cngr", part(cache.key), q_NGRK, preferred_element_type=jnp.float32
        )
        scores_CNH = scores_CNGR.reshape(block, num_rows, heads)
        if bias_HT is not None:
            scores_CNH += part(bias_HT, 1).T[:, None]
        scores_CNH = jnp.where(part(reads_T)[:, None, None], scores_CNH, MASKED)
        new_top_NH = jnp.maximum(top_NH, scores_CNH.max(axis=0))
        weights_CNH = jnp.exp(scores_CNH - new_top_NH)
        kept_NH = jnp.exp(top_NH - new_top_NH)
        weights_CNJQ = weights_CNH.reshape(block, num_rows, value_heads, -1)
        values_NJQV = jnp.einsum(
            "cnjq,cnjv->njqv",
            weights_CNJQ.astype(cache.value.dtype),
            part(cache.value),
            preferred_element_type=jnp.float32,
        )
        return (
            new_top_NH,
            total_NH * kept_NH + weights_CNH.sum(axis=0),
            sum_NHV * kept_NH[..., None] + values_NJQV.reshape(sum_NHV.shape),
        )

    start = (
        jnp.full((num_rows, heads), MASKED, jnp.float32),
        jnp.zeros((num_rows, heads), jnp.float32),
        jnp.zeros((num_rows, heads, value_width), jnp.float32),
    )
    _, total_NH, sum_NHV = lax.fori_loop(0, num_blocks, add_block, start)
    return (sum_NHV / total_NH[..., None]).astype(cache.value.dtype)


def _block(room: int) -> int:
    """Tokens in a block of a cache with this much room: few unwritten ones, and few blocks."""
    return max(_LEAST_BLOCK, -(-room // _MOST_BLOCKS))
