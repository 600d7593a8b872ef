"""A cache of keys and values: attention to it, and its selection by beams, against plain NumPy."""

import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import transformer_jax as tj
from tests.small import small_model
from transformer_jax.models import api
from transformer_jax.ops.key_value_cache import KeyValueCache, attend_to_cache
from transformer_jax.translation.model import Model
from transformer_jax.translation.model_calls import Decoding, Sources, decode_batch

BATCH, BEAMS, HEADS, WIDTH = 2, 3, 4, 5


def softmax_attention(q_HK, k_THK, v_THV, scale):
    """One query, in float64."""
    scores = np.einsum("hk,thk->ht", q_HK, k_THK) * scale
    weights = np.exp(scores - scores.max(axis=1, keepdims=True))
    return np.einsum("ht,thv->hv", weights / weights.sum(axis=1, keepdims=True), v_THV)


@pytest.mark.parametrize("groups", [4, 2, 1])
@pytest.mark.parametrize("room", [5, 8, 30, 100])
@pytest.mark.parametrize("selects", [False, True])
def test_each_hypothesis_attends_to_its_own_history(groups, room, selects):
    random = np.random.default_rng(room)
    draw = lambda *shape: random.standard_normal(shape).astype(np.float32)  # noqa: E731
    rows = BATCH * BEAMS
    cache = KeyValueCache.empty(rows, room, groups, WIDTH, jnp.float32)
    assert room <= cache.room < room + max(8, room // 8 + 1)
    cache = cache.for_beams(BATCH, BEAMS) if selects else cache
    histories = [[] for _ in range(rows)]  # of (key, value), for each hypothesis

    @jax.jit
    def step(cache, q, k, v, at):
        cache = cache.write(k, v, at)
        reads = jnp.arange(cache.room) <= at
        return attend_to_cache(q, cache, reads, length=at + 1), cache

    select = jax.jit(KeyValueCache.select)
    for at in range(min(room, 20)):
        q, k, v = draw(rows, HEADS, WIDTH), draw(rows, groups, WIDTH), draw(rows, groups, WIDTH)
        got, cache = step(cache, q, k, v, jnp.int32(at))
        for n in range(rows):
            histories[n].append((k[n], v[n]))
            keys, values = (np.stack(part) for part in zip(*histories[n], strict=True))
            want = softmax_attention(
                q[n],
                keys.repeat(HEADS // groups, axis=1),
                values.repeat(HEADS // groups, axis=1),
                WIDTH**-0.5,
            )
            np.testing.assert_allclose(got[n], want, atol=1e-5)
        if selects:
            parents = random.integers(0, BEAMS, (BATCH, BEAMS))
            cache = select(cache, parents)
            histories = [
                list(histories[b * BEAMS + parents[b, z]])
                for b in range(BATCH)
                for z in range(BEAMS)
            ]


def made_in_loops(method, position, *, batch, length, room):
    """(sizes, operation, line) of what a compiled search makes inside its loops.

    The model has one layer a side, 2 heads and 8 channels a head.
    """
    config = small_model(
        32, both=tj.StackConfig(num_layers=1, position=position), d_ff=16, max_length=96
    )
    sources = Sources(
        *(jax.ShapeDtypeStruct((batch, length), dtype) for dtype in (jnp.int32, bool)),
        *(jax.ShapeDtypeStruct((batch,), jnp.int32) for _ in range(2)),
    )
    lowered = decode_batch.lower(
        api.abstract_params(config),
        sources,
        model=Model((config,)),
        decoding=Decoding(method, room),
    )
    parts = lowered.compile().as_text().split("\n\n")
    loops = [part for part in parts if "get-tuple-element" in part and "ENTRY" not in part]
    for line in "\n".join(loops).splitlines():
        found = re.search(r"= \w+\[([\d,]+)\]\S* ([\w-]+)\(", line)
        if found and found[2] not in ("get-tuple-element", "parameter", "bitcast"):
            yield [int(size) for size in found[1].split(",")], found[2], line.strip()


@pytest.mark.parametrize("method", [tj.Greedy(), tj.Beam(4)], ids=["greedy", "beam"])
@pytest.mark.parametrize("position", [tj.Sinusoidal(), tj.Rope()], ids=["sinusoidal", "rope"])
def test_a_compiled_search_never_copies_a_cache(method, position):
    """No operation inside its loops makes an array as large as a cache, except writes in place."""
    batch, room = 3, 96
    cache_size = room * batch * method.num_hypotheses * 16
    made = [
        line
        for sizes, _, line in made_in_loops(method, position, batch=batch, length=8, room=room)
        if np.prod(sizes) >= cache_size
    ]
    writes = [line for line in made if "dynamic-update-slice" in line]
    assert len(writes) == 2, made  # the key's and the value's
    assert made == writes


@pytest.mark.parametrize("method", [tj.Greedy(), tj.Beam(4)], ids=["greedy", "beam"])
def test_a_compiled_search_never_moves_the_memory(method):
    """No operation inside its loops makes an array of the sizes of the memory's keys or values."""
    batch, length = 3, 40
    memory = sorted([batch, length, 2, 8])
    made = made_in_loops(method, tj.Sinusoidal(), batch=batch, length=length, room=96)
    assert not [line for sizes, _, line in made if sorted(sizes) == memory]
