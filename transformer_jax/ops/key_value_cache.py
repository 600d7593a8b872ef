"""Keys and values of the tokens so far, and attention of one token to them.

A decoding step is bound by the memory that it moves, so a cache is written once and never moved:

* it leads with the tokens, so that a step writes one contiguous part of it;
* beam search selects hypotheses by changing `ancestors`, and a step looks up keys and values
  through them;
* a step reads only the part that has been written, block by block with a running maximum and sum
  (Milakov and Gimelshein 2018, arXiv:1805.02867).

Scores and weights are float32. Axes: T room for tokens, N hypotheses of all sentences, sentence by
sentence; B sentences, Z hypotheses of one; H query heads, G heads of keys and values, a divisor
of H.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import Array, lax

from transformer_jax.ops.attention import MASKED, NO_HOOKS, Hooks
from transformer_jax.ops.sums import einsum, exp

#: A cache is read in at most this many blocks, of at least `_LEAST_BLOCK` tokens.
_MOST_BLOCKS = 8
_LEAST_BLOCK = 8


class KeyValueCache(NamedTuple):
    """A decoder state whose leaves lead with tokens; the hypotheses come second."""

    key: Array  #: [T, N, G, K]
    value: Array  #: [T, N, G, K]
    #: [T, B, Z] int32: which hypothesis of the sentence wrote the token that each one has there;
    #: None: each has its own tokens
    ancestors: Array | None = None

    @property
    def room(self) -> int:
        """T."""
        return self.key.shape[0]

    @classmethod
    def empty(cls, batch: int, room: int, heads: int, width: int, dtype: Any) -> "KeyValueCache":
        """Zeros, for at least `room` tokens of `batch` hypotheses."""
        block = _block(room)
        zeros = jnp.zeros((-(-room // block) * block, batch, heads, width), dtype)
        return cls(zeros, zeros)

    def at(self, places_M: Array) -> "KeyValueCache":
        """The tokens at these places alone."""
        return jax.tree.map(lambda leaf: leaf[places_M], self)

    def write(self, k_NGK: Array, v_NGK: Array, place: Array) -> "KeyValueCache":
        """With a token's key and value at `place`.

        Read the returned cache, not this one: otherwise XLA keeps a copy of all of it.
        """

        def put(leaf: Array, new: Array) -> Array:
            return lax.dynamic_update_index_in_dim(leaf, new.astype(leaf.dtype), place, axis=0)

        ancestors_TBZ = self.ancestors
        if ancestors_TBZ is not None:
            itself_BZ = jnp.broadcast_to(
                jnp.arange(ancestors_TBZ.shape[2]), ancestors_TBZ.shape[1:]
            )
            ancestors_TBZ = put(ancestors_TBZ, itself_BZ)
        return KeyValueCache(put(self.key, k_NGK), put(self.value, v_NGK), ancestors_TBZ)

    def for_beams(self, batch: int, beams: int) -> "KeyValueCache":
        """A cache from which `select` can be called."""
        return self._replace(ancestors=jnp.zeros((self.room, batch, beams), jnp.int32))

    def select(self, parents_BZ: Array) -> "KeyValueCache":
        """Each hypothesis with the tokens of its parent, a hypothesis of the same sentence."""
        assert self.ancestors is not None
        ancestors_TBZ = jnp.take_along_axis(
            self.ancestors, parents_BZ[None], axis=2, mode="promise_in_bounds"
        )
        return self._replace(ancestors=ancestors_TBZ)

    def of_sentences(self, places_M: Array, beams: int) -> "KeyValueCache":
        """The cache of the sentences at these places, of which each has so many `beams`."""

        def taken(leaf: Array) -> Array:
            by_sentence = leaf.reshape(self.room, -1, beams, *leaf.shape[2:])
            return by_sentence[:, places_M].reshape(self.room, -1, *leaf.shape[2:])

        ancestors_TBZ = None if self.ancestors is None else self.ancestors[:, places_M]
        return KeyValueCache(taken(self.key), taken(self.value), ancestors_TBZ)

    def rows(self, places: Array) -> Array:
        """Rows of `key` and `value` that hold the tokens of hypothesis n at `places` [N, ...]."""
        row = jnp.arange(len(places)).reshape(-1, *(1,) * (places.ndim - 1))
        if self.ancestors is None:
            return row
        beams = self.ancestors.shape[2]
        return row // beams * beams + self.ancestors[places, row // beams, row % beams]

    def part(self, start: Array, size: int) -> tuple[Array, Array]:
        """Keys and values [size, N, G, K] that each hypothesis has from `start`."""

        def read(leaf: Array) -> Array:
            part = lax.dynamic_slice_in_dim(leaf, start, size)
            if self.ancestors is None:
                return part
            written_by = lax.dynamic_slice_in_dim(self.ancestors, start, size)[..., None, None]
            split = part.reshape(size, *self.ancestors.shape[1:], *leaf.shape[2:])
            split = jnp.take_along_axis(split, written_by, axis=2, mode="promise_in_bounds")
            return split.reshape(part.shape)

        return read(self.key), read(self.value)


class PerSentence(NamedTuple):
    """A part of a decoder state that no step changes, one for all hypotheses of a sentence."""

    values: Any  #: leaves [B, ...]


def map_state(
    function: Callable[[Array], Array],
    state: Any,
    of_cache: Callable[[KeyValueCache], KeyValueCache] = lambda cache: cache,
    *,
    of_sentence: Callable[[PerSentence], PerSentence] = lambda known: known,
) -> Any:
    """A decoder state with `function` applied to its leaves, and the others to those parts."""

    def change(node: Any) -> Any:
        if isinstance(node, KeyValueCache):
            return of_cache(node)
        return of_sentence(node) if isinstance(node, PerSentence) else function(node)

    def is_part(node: Any) -> bool:
        return isinstance(node, KeyValueCache | PerSentence)

    return jax.tree.map(change, state, is_leaf=is_part)


def attend_to_cache(
    q_NHK: Array,
    cache: KeyValueCache,
    reads_T: Array,
    bias_HT: Array | None = None,
    hooks: Hooks = NO_HOOKS,
    *,
    length: Array | None = None,
) -> Array:
    """The attention of one token of each hypothesis, [N, H, K] in the dtype of the values.

    Args:
        reads_T: True where the token reads; at least one of the first `length` places.
        bias_HT: added to the scores.
        hooks: the scale, and the sink.
        length: int32, places from here on are not read; None reads the whole cache at once.
    """
    (num_rows, heads, width), groups = q_NHK.shape, cache.key.shape[2]
    q_NGRK = (q_NHK * hooks.scale_of(q_NHK)).reshape(num_rows, groups, -1, width)
    block = cache.room if length is None else _block(cache.room)
    num_blocks = 1 if length is None else (length + block - 1) // block

    def add_block(index: Array, so_far: tuple[Array, ...]) -> tuple[Array, ...]:
        top_NH, total_NH, sum_NHK = so_far

        def part(x: Array, axis: int = 0) -> Array:
            return lax.dynamic_slice_in_dim(x, index * block, block, axis)

        k_CNGK, v_CNGK = cache.part(index * block, block)
        scores_CNGR = einsum("cngk,ngrk->cngr", k_CNGK, q_NGRK)
        scores_CNH = scores_CNGR.reshape(block, num_rows, heads)
        if bias_HT is not None:
            scores_CNH += part(bias_HT, 1).T[:, None]
        scores_CNH = jnp.where(part(reads_T)[:, None, None], scores_CNH, MASKED)
        new_top_NH = jnp.maximum(top_NH, scores_CNH.max(axis=0))
        weights_CNH = exp(scores_CNH - new_top_NH[None])
        kept_NH = exp(top_NH - new_top_NH)
        # Values as the first operand: XLA for CPUs gathers them in half the time for this product.
        weights_CNGR = weights_CNH.reshape(scores_CNGR.shape).astype(v_CNGK.dtype)
        values_NGKR = einsum("cngk,cngr->ngkr", v_CNGK, weights_CNGR)
        values_NHK = values_NGKR.swapaxes(2, 3).reshape(sum_NHK.shape)
        total_NH = total_NH * kept_NH + weights_CNH.sum(axis=0)
        return new_top_NH, total_NH, sum_NHK * kept_NH[..., None] + values_NHK

    sink_H = hooks.sink_H
    top_H = jnp.full(heads, MASKED) if sink_H is None else sink_H.astype(jnp.float32)
    start = (
        jnp.broadcast_to(top_H, (num_rows, heads)),
        jnp.full((num_rows, heads), 0.0 if sink_H is None else 1.0),
        jnp.zeros((num_rows, heads, width), jnp.float32),
    )
    _, total_NH, sum_NHK = lax.fori_loop(0, num_blocks, add_block, start)
    return (sum_NHK / total_NH[..., None]).astype(cache.value.dtype)


def _block(room: int) -> int:
    """Tokens in a block of a cache with this much room: few unwritten ones, and few blocks."""
    return max(_LEAST_BLOCK, -(-room // _MOST_BLOCKS))
