"""The loop of a search: each row as if it were alone, and few rows at the end."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import AbstractMesh

from transformer_jax.decoding.search_loop import Search, search_loop
from transformer_jax.ops.key_value_cache import KeyValueCache, PerSentence
from transformer_jax.parallel.mesh import activations_on

LENGTH, BEAMS = 12, 2


def counted(durations):
    """Rows that count to their durations; and the numbers of rows that steps were traced with."""
    batch, traced = len(durations), []
    numbers_BZ = jnp.arange(batch * BEAMS).reshape(batch, BEAMS)

    def body(search):
        traced.append(len(search.rows))
        position, (number, cache, known), running_B = search.position, search.state, left(search)
        cache = cache.write(
            *jnp.broadcast_to(position, (2, len(running_B) * BEAMS, 1, 1)), position
        )
        # Every part of the search is still that of the same sentence.
        right_B = (number // BEAMS == known.values[:, None]).all(axis=1)
        right_B &= search.given == known.values + 100
        owners_NGK = jnp.repeat(known.values, BEAMS)[:, None, None]
        right_B &= (cache.key[-1] == owners_NGK).reshape(len(running_B), -1).all(axis=1)
        right_B &= (cache.ancestors[-1] == known.values[:, None]).all(axis=1)
        rows = search.rows + jnp.where(running_B & right_B, 1, 0)
        added_B = jnp.where(running_B, known.values, -1)
        added_BZ = jnp.broadcast_to(added_B[:, None], (len(added_B), BEAMS))
        return rows, added_BZ, (number, cache, known)

    def left(search):
        return search.rows < durations_B[search.given - 100]

    durations_B = jnp.asarray(durations)
    cache = KeyValueCache.empty(batch * BEAMS, LENGTH + 4, 1, 1, jnp.int32)
    cache = cache.for_beams(batch, BEAMS)
    cache = cache._replace(
        key=cache.key.at[-1].set((numbers_BZ // BEAMS).reshape(-1, 1, 1)),
        ancestors=cache.ancestors.at[-1].set(numbers_BZ // BEAMS),
    )
    start = Search(
        position=jnp.int32(0),
        given=jnp.arange(batch) + 100,
        rows=jnp.zeros(batch, jnp.int32),
        history=jnp.full((LENGTH, batch, BEAMS), -1),
        state=(numbers_BZ, cache, PerSentence(jnp.arange(batch))),
    )
    end = search_loop(body, left, start)
    return end, set(traced)


@pytest.mark.parametrize(
    "durations",
    [
        *(np.random.default_rng(batch).integers(0, 3, batch) for batch in (1, 2, 15, 16)),
        *(np.random.default_rng(batch).integers(0, LENGTH + 1, batch) for batch in (16, 17, 33)),
        [3] * 12,  # all end together
        [LENGTH] * 12,  # at the end of the room
        [0] * 12,  # nothing to do
        [9] + [2] * 11,
        [2] * 11 + [9],
        [1] * 5 + [4, 5, 6] + [1] * 4,
    ],
)
def test_every_row_runs_to_its_own_end(durations):
    durations = np.asarray(durations)
    end = jax.jit(lambda: counted(durations)[0])()
    np.testing.assert_array_equal(end.rows, durations)
    history = np.where(np.arange(LENGTH)[:, None] < durations, np.arange(len(durations)), -1)
    for beam in range(BEAMS):
        np.testing.assert_array_equal(end.history[:, :, beam], history)


@pytest.mark.parametrize(("batch", "rows"), [(15, {15}), (16, {16, 4}), (33, {33, 8})])
def test_a_large_batch_ends_with_a_quarter_of_its_rows(batch, rows):
    assert counted([LENGTH] + [1] * (batch - 1))[1] == rows


def test_rows_on_several_devices_stay_there():
    for count, rows in ((1, {16, 4}), (2, {16})):
        mesh = AbstractMesh((count, 1, 1), ("data", "fsdp", "tensor"))
        traced = []
        with activations_on(mesh):
            jax.eval_shape(lambda: traced.append(counted([LENGTH] + [1] * 15)[1]))  # noqa: B023
        assert traced == [rows]
