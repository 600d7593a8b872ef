"""Linformer and token mixing, whose parameters are for a longest sequence."""

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
from transformer_jax.mixers.mlp_mixer import MlpMixer
from transformer_jax.testing import mixers as suite


def build(config, *, causal=False, max_length=9):
    context = dataclasses.replace(suite.context(causal=causal), max_length=max_length)
    mixer = config.build(context, suite.position(causal=causal))
    return mixer, suite.initialised(mixer)


@pytest.mark.parametrize(
    ("sharing", "shapes"),
    [
        ("none", {"key_projection": (4, 9, 3), "value_projection": (4, 9, 3)}),
        ("heads", {"key_projection": (1, 9, 3), "value_projection": (1, 9, 3)}),
        ("key_value", {"key_projection": (1, 9, 3)}),
    ],
)
def test_linformer_is_the_formula(sharing, shapes):
    mixer, variables = build(Linformer(rank=3, sharing=sharing))
    matrices = variables["params"]["length_projection"]
    assert {name: matrix.shape for name, matrix in matrices.items()} == shapes

    def by_hand(bound, x):
        k, v = bound.heads.keys_values(x)
        e = bound.length_projection.key_projection
        f = bound.length_projection.value_projection
        return bound.heads.join(naive_linformer(bound.heads.queries(x), k, v, suite.MASK, e, f))

    assert_same_with_gradients(mixer, variables, by_hand, suite.inputs(), suite.MASK)


def test_linformer_begins_with_the_same_tokens_in_a_row_of_keys_and_of_values():
    """With the norm of a sum of max_length / R independent keys."""
    mixer, _ = build(Linformer(rank=4), max_length=12)
    variables = mixer.init(jax.random.key(0), suite.inputs(), suite.MASK)
    for matrix in nn.unbox(variables)["params"]["length_projection"].values():
        np.testing.assert_array_equal(matrix[0].argmax(axis=-1), np.arange(12) % 4)
        np.testing.assert_allclose(np.linalg.norm(matrix[0], axis=0), 1, atol=0.2)
        assert len(np.unique(matrix[0], axis=0)) == 12  # all positions differ


@pytest.mark.parametrize("causal", [False, True])
def test_token_mixing_is_the_formula(causal):
    """In the decoder, unit s is at position s: it reads j <= s, and t >= s read it."""
    mixer, variables = build(MlpMixer(hidden=5), causal=causal)
    length, mask = suite.LENGTH, suite.MASK[..., None]

    def by_hand(bound, x):
        p = bound.variables["params"]
        units = length if causal else 5
        read = np.tri(length, dtype=bool).T if causal else True
        up = jnp.where(read, p["up"][:length, :units], 0.0)
        down = jnp.where(read, p["down"][:units, :length], 0.0)
        total = jnp.einsum("js,bjd->bsd", up, jnp.where(mask, x, 0.0))
        hidden = jax.nn.gelu(total + p["up_bias"][:units, None])
        return jnp.einsum("st,bsd->btd", down, hidden) + p["down_bias"][:length, None]

    assert_same_with_gradients(mixer, variables, by_hand, suite.inputs(), suite.MASK)


def test_decoding_by_token_mixing_may_stop_before_the_longest_sequence():
    # The cache is shorter than the kernels: LENGTH of 9.
    suite.check_step_equals_parallel(*build(MlpMixer(), causal=True))


@pytest.mark.parametrize("config", [Linformer(), MlpMixer()])
def test_a_longer_sequence_is_refused(config):
    causal = type(config) is MlpMixer
    mixer, variables = build(config, causal=causal, max_length=suite.LENGTH)
    longer = jnp.zeros((1, suite.LENGTH + 1, suite.D))
    with pytest.raises(UserError, match="at most model.max_length=7 positions, got 8"):
        suite.parallel(mixer, variables, longer, jnp.ones(longer.shape[:2], bool))
    if causal:
        with pytest.raises(UserError, match="at most model.max_length=7 positions, got 8"):
            mixer.apply(variables, 1, suite.LENGTH + 1, method="init_state")
