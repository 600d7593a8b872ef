"""The whole model: sizes of the paper, decoding equals teacher forcing, options."""

from dataclasses import replace
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tests.quick import quick
from tests.small import small_model
from transformer_jax.errors import UserError
from transformer_jax.layers.feed_forward import Glu, Mlp
from transformer_jax.layers.norms import LayerNorm, RMSNorm
from transformer_jax.mixers.bigbird import BigBird
from transformer_jax.mixers.full_attention import Full, FullCross
from transformer_jax.mixers.ssru import SSRU
from transformer_jax.mixers.window import Window
from transformer_jax.models import api
from transformer_jax.models.config import StackConfig, check_model_config, layer_mixers
from transformer_jax.positions.rope import Rope
from transformer_jax.positions.t5 import T5

SMALL = small_model(20, both=StackConfig(num_layers=2), max_length=12)
SOURCE = jax.random.randint(jax.random.key(1), (3, 6), 4, 20)
SOURCE_MASK = jnp.arange(6)[None] < jnp.array([6, 4, 2])[:, None]
TARGET = jax.random.randint(jax.random.key(2), (3, 7), 4, 20)
TARGET_MASK = jnp.arange(7)[None] < jnp.array([7, 3, 5])[:, None]
BATCH = dict(source=SOURCE, source_mask=SOURCE_MASK, target=TARGET, target_mask=TARGET_MASK)

SMALLER = replace(SMALL, encoder=StackConfig(num_layers=1), decoder=StackConfig(num_layers=1))
VARIANTS = {
    "pre": SMALL,
    "post": replace(SMALL, norm_placement="post"),
    "untied": replace(SMALLER, tie_embeddings="none", source_vocab_size=25),
    "decoder-tied": replace(SMALLER, tie_embeddings="decoder", source_vocab_size=25),
    "gelu": replace(SMALLER, feed_forward=Mlp(activation="gelu"), head_dim=4),
    "t5": replace(
        SMALLER,
        norm=RMSNorm(),
        feed_forward=Glu(activation="gelu_tanh"),
        encoder=StackConfig(num_layers=1, position=T5()),
        decoder=StackConfig(num_layers=1, position=T5()),
    ),
    "marian": replace(
        SMALLER,
        norm=LayerNorm(epsilon=1e-5),
        norm_placement="post",
        feed_forward=Mlp(activation="silu"),
        output_bias=True,
        start_id=0,
        unused_ids=(0, 1),
    ),
    "student": replace(
        SMALLER,
        norm_placement="post",
        output_bias=True,
        start_id=None,
        unused_ids=(0, 1, 3),
        decoder=StackConfig(num_layers=2, mixers=(SSRU(),)),
    ),
    "hybrid": replace(
        SMALLER, decoder=StackConfig(num_layers=3, mixers=(SSRU(), Full()), position=Rope())
    ),
    "mbart": replace(
        SMALLER,
        embedding_norm=True,
        embedding_scale=1.0,
        logit_scale=0.25,
        tie_embeddings="inputs",
    ),
    "no biases": replace(
        SMALLER,
        cross=FullCross(use_bias=False, score_scale=1.0),
        decoder=StackConfig(num_layers=1, mixers=(Full(use_bias=False, score_scale=1.0),)),
    ),
}


init = jax.jit(api.init, static_argnums=0)
encode = jax.jit(api.encode, static_argnums=0, static_argnames=("max_length", "beam_size"))
decode_step = jax.jit(api.decode_step, static_argnums=0)


@partial(jax.jit, static_argnums=0)
def logits(config, params, source=SOURCE, mask=SOURCE_MASK):
    return api.apply(config, params, source, mask, api.shift_right(TARGET), TARGET_MASK)


QUICK = ("pre", "untied", "t5", "marian", "student", "hybrid", "mbart")


@pytest.mark.parametrize("name", quick(VARIANTS, *QUICK))
def test_decoding_steps_equal_teacher_forcing(name):
    config = VARIANTS[name]
    params = init(config, jax.random.key(0))
    want = np.asarray(logits(config, params))
    sentence, state = encode(config, params, SOURCE, SOURCE_MASK, max_length=7, beam_size=2)
    target_in = api.shift_right(TARGET)
    for t in range(7):
        both = jnp.stack([target_in[:, t]] * 2, axis=1)
        got, state = decode_step(config, params, both, jnp.int32(t), state, sentence)
        real = np.asarray(TARGET_MASK[:, t])
        for beam in range(2):
            np.testing.assert_allclose(got[real, beam], want[real, t], atol=1e-5)


def test_a_pattern_of_mixers_is_cycled_over_the_depth():
    pattern = (Window(window=2), Window(window=4), Full())
    assert layer_mixers(StackConfig(5, pattern)) == [*pattern, *pattern[:2]]
    assert layer_mixers(StackConfig(1, pattern)) == [Window(window=2)]


def test_remat_changes_memory_and_not_the_gradient():
    params = init(SMALLER, jax.random.key(0))

    def grad(config):
        key = jax.random.key(3)
        return jax.grad(lambda p: api.loss(config, p, BATCH, rng=key)[0])

    plain, again = grad(SMALLER), grad(replace(SMALLER, remat=True))
    jax.tree.map(
        lambda a, b: np.testing.assert_allclose(a, b, atol=1e-5),
        jax.jit(plain)(params),
        jax.jit(again)(params),
    )
    assert "remat" in str(jax.make_jaxpr(again)(params))
    assert "remat" not in str(jax.make_jaxpr(plain)(params))


def test_functions_jit_vmap_and_grad():
    params = init(SMALL, jax.random.key(0))
    target_in = api.shift_right(TARGET)
    want = api.apply(SMALL, params, SOURCE, SOURCE_MASK, target_in, TARGET_MASK)
    np.testing.assert_allclose(logits(SMALL, params), want, atol=1e-5)

    def one(source, mask, target_in, target_mask):
        add = lambda x: x[None]  # noqa: E731
        return api.apply(SMALL, params, add(source), add(mask), add(target_in), add(target_mask))[0]

    mapped = jax.jit(jax.vmap(one))(SOURCE, SOURCE_MASK, target_in, TARGET_MASK)
    np.testing.assert_allclose(mapped, want, atol=1e-5)


def test_dropout_needs_a_key_and_follows_it():
    params = init(SMALL, jax.random.key(0))
    target_in = api.shift_right(TARGET)

    @jax.jit
    def noisy(key):
        arrays = SOURCE, SOURCE_MASK, target_in, TARGET_MASK
        return api.apply(SMALL, params, *arrays, rng=key)

    np.testing.assert_array_equal(noisy(jax.random.key(1)), noisy(jax.random.key(1)))
    assert not np.allclose(noisy(jax.random.key(1)), noisy(jax.random.key(2)))


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"num_heads": 3}, "d_model=16 is not divisible by model.num_heads=3"),
        ({"dropout_rate": 1.0}, "model.dropout_rate"),
        ({"feed_forward": "tanhh"}, "model.feed_forward: 'tanhh' is unknown; use mlp, glu"),
        ({"norm_placement": "middle"}, "model.norm_placement: .*'pre' or 'post'"),
        ({"source_vocab_size": 21}, "tokenizer.joint=true"),
        ({"encoder": StackConfig(mixers=("fulll",))}, "model.encoder.mixers: 'fulll' is unknown"),
        ({"decoder": StackConfig(num_layers=0)}, "model.decoder.num_layers"),
        ({"cross": "window"}, "model.cross: window: .*use full or linear"),
        ({"cross": FullCross(num_kv_heads=3)}, "model.cross.*num_kv_heads=3: must divide"),
        (
            {"encoder": StackConfig(2, (BigBird(),)), "scan_layers": True},
            "model.encoder.mixers=bigbird.* model.scan_layers=false",
        ),
        ({"start_id": 20}, "model.start_id: 20 is not the id of a target piece"),
        ({"unused_ids": (3, 20)}, "model.unused_ids: 20 is not the id of a target piece"),
    ],
)
def test_what_cannot_work_fails_at_build_with_advice(change, words):
    with pytest.raises(UserError, match=words):
        check_model_config(replace(SMALL, **change))
