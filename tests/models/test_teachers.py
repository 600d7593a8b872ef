"""What a teacher adds to the labels, against the formula written out."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tests.training import toy
from transformer_jax.models import api
from transformer_jax.models.teachers import WordLevel

BATCH = {name: jnp.asarray(array) for name, array in toy.batch(0).items()}
MASK = BATCH["target_mask"]


@pytest.fixture(scope="module")
def params():
    """Of a teacher and of a student; larger than they start, so that no two pieces are alike."""
    keys = jax.random.key(0), jax.random.key(1)
    return [jax.tree.map(lambda x: 3 * x, api.init(toy.MODEL, key)) for key in keys]


def log_probs(params, temperature=1.0):
    arrays = BATCH["source"], BATCH["source_mask"], api.shift_right(BATCH["target"]), MASK
    return jax.nn.log_softmax(api.apply(toy.MODEL, params, *arrays) / temperature)


def taught(params, teacher):
    return BATCH | teacher.soft_labels(toy.MODEL, params, BATCH)


def test_the_loss_is_that_of_the_text_and_of_the_teachers_distribution(params):
    teacher = WordLevel("", weight=0.3, temperature=2.0, pieces=toy.VOCAB)
    loss, nll, tokens = api.loss(toy.MODEL, params[1], taught(params[0], teacher))
    q, log_p = jnp.exp(log_probs(params[0], 2.0)), log_probs(params[1])
    of_labels = jnp.take_along_axis(log_p, BATCH["target"][..., None], -1)[..., 0]
    mixed = 0.7 * of_labels + 0.3 * (q * log_p).sum(-1)
    np.testing.assert_allclose(loss, -(mixed * MASK).sum(), rtol=1e-5)
    np.testing.assert_allclose(nll, -(of_labels * MASK).sum(), rtol=1e-5)
    assert tokens == MASK.sum()


def test_the_most_probable_pieces_share_the_weight(params):
    soft = WordLevel("", weight=0.3, pieces=4).soft_labels(toy.MODEL, params[0], BATCH)
    q = np.asarray(log_probs(params[0]))
    np.testing.assert_array_equal(soft["soft_ids"], np.argsort(-q)[..., :4])
    best = np.exp(-np.sort(-q)[..., :4])
    want = 0.3 * best / best.sum(-1, keepdims=True)
    np.testing.assert_allclose(soft["soft_shares"], want, rtol=1e-5)
