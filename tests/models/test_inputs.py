"""What the model's functions refuse, in one line that names the argument."""

from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import transformer_jax as tj
from tests.training import toy
from transformer_jax.errors import UserError
from transformer_jax.models import api

IDS = np.array([[4, 5, 6, 2], [4, 2, 0, 0]], np.int32)
MASK = IDS > 0
BATCH = dict(source=IDS, source_mask=MASK, target=IDS, target_mask=MASK)
LEFT = np.roll(MASK, 2, axis=1)
HOLE = np.array([[True, False, True, True], [True, True, False, False]])
MODEL = replace(toy.MODEL, source_vocab_size=16, target_vocab_size=16)

MISTAKES = [
    ({"source_mask": LEFT}, "source_mask: row 1 has padding before a real token"),
    ({"target_mask": HOLE}, "target_mask: row 0 has padding before a real token"),
    ({"source": IDS + 10}, "source has id 16, the vocabulary 16"),
    ({"target": IDS - 1}, "target has id -1, the vocabulary 16"),
    ({"source_mask": MASK[:, :3]}, r"source_mask is bool\[2, 3\] and source int32\[2, 4\]"),
    ({"source_mask": MASK.astype("f")}, r"source_mask is float32\[2, 4\] .* a boolean mask"),
    ({"target": IDS.astype("f")}, r"target is float32\[2, 4\]: give int32 ids"),
]


@pytest.fixture(scope="module")
def params():
    return jax.jit(api.init, static_argnums=0)(MODEL, jax.random.key(0))


@pytest.mark.parametrize(("change", "words"), MISTAKES)
def test_a_batch_that_is_none_is_refused(params, change, words):
    batch = BATCH | change
    with pytest.raises(UserError, match=words):
        api.loss(MODEL, params, batch)
    if batch["source"].shape == batch["source_mask"].shape:  # else tests/shapes.py is first
        with pytest.raises(UserError, match=words):
            api.apply(MODEL, params, *(batch[name] for name in BATCH))
    with pytest.raises(UserError, match=f"batches, position 0: {words}"):
        tj.fit(MODEL, toy.TRAIN, lambda position: iter([batch]))


@pytest.mark.parametrize(("change", "words"), MISTAKES[4:])
def test_kinds_and_shapes_are_checked_inside_jit(params, change, words):
    with pytest.raises(UserError, match=words):
        jax.jit(lambda batch: api.loss(MODEL, params, batch))(BATCH | change)


def test_exchanged_arguments_and_the_encoder_alone(params):
    with pytest.raises(UserError, match="source_mask is int32"):
        api.apply(MODEL, params, IDS, IDS, MASK, MASK)
    with pytest.raises(UserError, match="row 1 has padding before"):
        api.encode(MODEL, params, jnp.asarray(IDS), jnp.asarray(LEFT), max_length=3)


def test_other_mistakes(params):
    lacking = {name: BATCH[name] for name in ("source", "source_mask", "target")}
    with pytest.raises(UserError, match="lacks target_mask; it has source, source_mask, target"):
        api.loss(MODEL, params, lacking)
    with pytest.raises(UserError, match="batches is a generator: give a function"):
        tj.fit(MODEL, toy.TRAIN, (each for each in [BATCH]))
    with pytest.raises(UserError, match=r"key is 0: give jax.random.key\(0\)"):
        tj.init(MODEL, 0)
    with pytest.raises(UserError, match="params are not of this config: .*kernel"):
        api.loss(replace(MODEL, d_ff=2 * MODEL.d_ff), params, BATCH)


def test_embeddings_stand_for_source_ids_and_nothing_else(params):
    loss = lambda batch: api.loss(MODEL, params, batch)  # noqa: E731
    words, targets = tj.embed(MODEL, params, IDS, IDS)
    want = [float(each) for each in loss(BATCH)]
    np.testing.assert_allclose([float(x) for x in loss(BATCH | {"source": words})], want, rtol=1e-6)
    for change, message in (
        ({"source": words[..., :1]}, r"source is float32\[2, 4, 1\]: its embeddings have \d+ feat"),
        ({"target": targets}, r"target is float32\[2, 4, \d+\]: labels are int32 ids"),
        ({"source": IDS[:1], "source_mask": MASK[:1]}, "source has 1 rows, target 2"),
    ):
        with pytest.raises(UserError, match=message):
            loss(BATCH | change)
