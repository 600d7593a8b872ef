"""The loop of a search, in which a batch does not wait for its longest sentence with all its rows.

A step costs a CPU about as much as it has rows, whether or not they are finished. So when at most a
quarter of the sentences is unfinished, the loop goes on with these alone: their part of everything
that the search holds is copied once. Rows do not depend on each other, so nothing else changes.
"""

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import Array, lax

from transformer_jax.decoding.base import State
from transformer_jax.ops.key_value_cache import map_state
from transformer_jax.ops.sharding import num_devices

#: A loop of at least so many rows ends with a part of them, which it divides by this.
_LEAST, _PART = 16, 4


class Search(NamedTuple):
    """What a search holds between two steps, for B sentences with Z hypotheses each."""

    position: Array  #: scalar, the next one to be filled
    given: Any  #: leaves [B, ...] that no step changes
    rows: Any  #: leaves [B, ...]
    history: Any  #: leaves [T, B, Z], of which a step fills one position
    state: State


def search_loop(
    body: Callable[[Search], tuple[Any, Any, State]],
    unfinished: Callable[[Search], Array],
    start: Search,
) -> Search:
    """Takes steps until every sentence is finished, or the history is full.

    Args:
        body: one step, for any number of sentences: the new rows, what it adds to the history
            (leaves [B, Z]), and the new state.
        unfinished: search -> [B] bool.
        start: the search before position 0.

    Returns:
        The search at the end; its `state` is not to be used.
    """
    max_length, batch, num_hypotheses = jax.tree.leaves(start.history)[0].shape

    def more_than(few: int) -> Callable[[Search], Array]:
        return lambda search: (search.position < max_length) & (unfinished(search).sum() > few)

    def one_step(search: Search) -> Search:
        position = search.position
        rows, added, state = body(search)
        put = partial(lax.dynamic_update_index_in_dim, index=position, axis=0)
        history = jax.tree.map(put, search.history, added)
        return Search(position + 1, search.given, rows, history, state)

    # Where the rows are on many devices, there is one loop.
    few = batch // _PART if batch >= _LEAST and num_devices() == 1 else 0
    search = lax.while_loop(more_than(few), one_step, start)
    if not few:
        return search
    # Where fewer are left, the first sentence stands several times, with one result.
    (places,) = jnp.nonzero(unfinished(search), size=few)
    part = lax.while_loop(more_than(0), one_step, _take(search, places, num_hypotheses))
    return search._replace(
        position=part.position,
        rows=jax.tree.map(lambda leaf, new: leaf.at[places].set(new), search.rows, part.rows),
        history=jax.tree.map(
            lambda leaf, new: leaf.at[:, places].set(new), search.history, part.history
        ),
    )


def _take(search: Search, places: Array, num_hypotheses: int) -> Search:
    """The sentences at these places."""

    def rows(leaf: Array) -> Array:
        return leaf[places]

    return Search(
        search.position,
        given=jax.tree.map(rows, search.given),
        rows=jax.tree.map(rows, search.rows),
        history=jax.tree.map(lambda leaf: leaf[:, places], search.history),
        state=map_state(
            rows,
            search.state,
            lambda cache: cache.of_sentences(places, num_hypotheses),
            of_sentence=lambda known: jax.tree.map(rows, known),
        ),
    )
