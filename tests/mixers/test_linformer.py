"""Linformer: its formula, its first values, what it refuses."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import linen as nn

from tests.mixers.formula import assert_same_with_gradients
from tests.reference.naive_attention import naive_linformer
from transformer_jax.errors import UserError
from transformer_jax.mixers.linformer import Linformer
from transformer_jax.testing import mixers as suite


def build(max_length=suite.LENGTH, **options):
    context = dataclasses.replace(suite.context(causal=False), max_length=max_length)
    mixer = Linformer(**options).build(context, suite.position(causal=False))
    return mixer, suite.initialised(mixer)


@pytest.mark.parametrize(
    ("sharing", "shapes"),
    [
        ("none", {"key_projection": (4, 9, 3), "value_projection": (4, 9, 3)}),
        ("heads", {"key_projection": (1, 9, 3), "value_projection": (1, 9, 3)}),
        ("key_value", {"key_projection": (1, 9, 3)}),
    ],
)
def test_the_module_is_the_formula(sharing, shapes):
    mixer, variables = build(max_length=9, rank=3, sharing=sharing)
    matrices = variables["params"]["length_projection"]
    assert {name: matrix.shape for name, matrix in matrices.items()} == shapes

    def by_hand(bound, x):
        k, v = bound.heads.keys_values(x)
        e = bound.length_projection.key_projection
        f = bound.length_projection.value_projection
        y = naive_linformer(bound.heads.queries(x), k, v, np.asarray(suite.MASK), e, f)
        return bound.heads.join(y)

    assert_same_with_gradients(mixer, variables, by_hand, suite.inputs(), suite.MASK)


def test_it_begins_with_the_same_tokens_in_a_row_of_keys_and_of_values():
    """With the norm of a sum of max_length / R independent keys."""
    mixer, _ = build(max_length=12, rank=4)
    variables = mixer.init(jax.random.key(0), suite.inputs(), suite.MASK)
    for matrix in nn.unbox(variables)["params"]["length_projection"].values():
        np.testing.assert_array_equal(matrix[0].argmax(axis=-1), np.arange(12) % 4)
        np.testing.assert_allclose(np.linalg.norm(matrix[0], axis=0), 1, atol=0.2)
        assert len(np.unique(matrix[0], axis=0)) == 12  # all positions differ


def test_it_says_what_it_cannot_do():
    mixer, variables = build()
    longer = jnp.zeros((1, suite.LENGTH + 1, suite.D))
    with pytest.raises(UserError, match="at most model.max_length=7 positions, got 8"):
        suite.parallel(mixer, variables, longer, jnp.ones(longer.shape[:2], bool))
