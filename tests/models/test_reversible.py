"""Reversible residuals: their gradient, their dropout, their memory, their decoding."""

from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from transformer_jax.errors import UserError
from transformer_jax.layers.feed_forward import Mlp
from transformer_jax.mixers.full_attention import Full, FullCross
from transformer_jax.models import api
from transformer_jax.models.config import ModelConfig, StackConfig, check_model_config

CONFIG = ModelConfig(
    source_vocab_size=20,
    target_vocab_size=20,
    d_model=16,
    d_ff=32,
    num_heads=2,
    encoder=StackConfig(num_layers=2),
    decoder=StackConfig(num_layers=2),
    residual="reversible",
    max_length=12,
)
ONE_LAYER = replace(CONFIG, encoder=StackConfig(num_layers=1), decoder=StackConfig(num_layers=1))
SOURCE = jax.random.randint(jax.random.key(1), (3, 6), 4, 20)
SOURCE_MASK = jnp.arange(6)[None] < jnp.array([6, 4, 2])[:, None]
TARGET = jax.random.randint(jax.random.key(2), (3, 7), 4, 20)
TARGET_MASK = jnp.arange(7)[None] < jnp.array([7, 3, 5])[:, None]
BATCH = dict(source=SOURCE, source_mask=SOURCE_MASK, target=TARGET, target_mask=TARGET_MASK)


init = jax.jit(api.init, static_argnums=0)


@pytest.mark.parametrize("config", [ONE_LAYER, CONFIG])
def test_the_gradient_is_that_of_plain_autodiff(config):
    # Without a key the model is differentiated as it is written. With a key, and a dropout rate
    # of 0, the backward pass reconstructs the activations.
    config = replace(config, dropout_rate=0.0)
    params = init(config, jax.random.key(0))

    @jax.jit
    def both(params):
        return [
            jax.value_and_grad(lambda p, k=key: api.loss(config, p, BATCH, rng=k)[0])(params)
            for key in (None, jax.random.key(3))
        ]

    (want, want_grad), (got, got_grad) = both(params)
    np.testing.assert_allclose(got, want, rtol=1e-6)
    assert jax.tree.structure(got_grad) == jax.tree.structure(want_grad)
    for a, b in zip(jax.tree.leaves(got_grad), jax.tree.leaves(want_grad), strict=True):
        assert jnp.abs(b).max() > 0
        np.testing.assert_allclose(a, b, atol=1e-4 * float(jnp.abs(b).max()))


def test_dropout_is_replayed():
    # If the backward pass dropped other elements than the forward pass, the derivative would not
    # be that of the loss.
    config = replace(
        ONE_LAYER,
        dropout_rate=0.3,
        feed_forward=Mlp(dropout_rate=0.3),
        encoder=StackConfig(1, (Full(dropout_rate=0.3),)),
        decoder=StackConfig(1, (Full(dropout_rate=0.3),)),
        cross=FullCross(dropout_rate=0.3),
    )
    params = init(config, jax.random.key(0))
    direction = jax.tree.map(
        lambda x: jax.random.normal(jax.random.key(x.size), x.shape) * 0.02, params
    )

    @jax.jit
    def along(t):
        moved = jax.tree.map(lambda x, d: x + t * d, params, direction)
        return api.loss(config, moved, BATCH, rng=jax.random.key(3))[0]

    got = jax.jit(jax.grad(along))(0.0)
    h = 0.02
    want = (8 * (along(h) - along(-h)) - (along(2 * h) - along(-2 * h))) / (12 * h)
    assert abs(want) > 0.1
    np.testing.assert_allclose(got, want, rtol=2e-2)


def temporary_bytes(residual, layers):
    stack = StackConfig(num_layers=layers)
    config = replace(
        CONFIG, residual=residual, encoder=stack, decoder=stack, max_length=64, dropout_rate=0.1
    )
    ids = jax.ShapeDtypeStruct((16, 64), jnp.int32)
    mask = jax.ShapeDtypeStruct((16, 64), bool)
    batch = dict(source=ids, source_mask=mask, target=ids, target_mask=mask)

    def gradient(params, batch):
        return jax.grad(lambda p: api.loss(config, p, batch, rng=jax.random.key(3))[0])(params)

    compiled = jax.jit(gradient).lower(api.abstract_params(config), batch).compile()
    return compiled.memory_analysis().temp_size_in_bytes


def growth_in_streams(residual):
    """Growth from 1 + 1 to 3 + 3 layers, which adds ten sublayers, in arrays [B, L, D]."""
    return (temporary_bytes(residual, 3) - temporary_bytes(residual, 1)) / (16 * 64 * 16 * 4)


@pytest.mark.slow
def test_activation_memory_does_not_grow_with_depth():
    assert growth_in_streams("reversible") < 2


@pytest.mark.slow
def test_activation_memory_of_standard_residuals_does():
    assert growth_in_streams("standard") > 20


def test_decoding_steps_equal_teacher_forcing():
    params = init(CONFIG, jax.random.key(0))
    target_in = api.shift_right(TARGET)
    apply = jax.jit(api.apply, static_argnums=0)
    want = np.asarray(apply(CONFIG, params, SOURCE, SOURCE_MASK, target_in, TARGET_MASK))
    encode = jax.jit(api.encode, static_argnums=0, static_argnames=("max_length", "beam_size"))
    sentence, state = encode(CONFIG, params, SOURCE, SOURCE_MASK, max_length=7, beam_size=2)
    step = jax.jit(api.decode_step, static_argnums=0)
    for t in range(7):
        both = jnp.stack([target_in[:, t]] * 2, axis=1)
        got, state = step(CONFIG, params, both, jnp.int32(t), state, sentence)
        real = np.asarray(TARGET_MASK[:, t])
        for beam in range(2):
            np.testing.assert_allclose(got[real, beam], want[real, t], atol=1e-5)


@pytest.mark.parametrize(
    ("change", "words"),
    [({"norm_placement": "post"}, "model.norm_placement=pre"), ({"remat": True}, "remat=false")],
)
def test_what_cannot_be_reversed_fails_at_build(change, words):
    check_model_config(CONFIG)
    with pytest.raises(UserError, match=f"residual=reversible .*{words}"):
        check_model_config(replace(CONFIG, **change))
