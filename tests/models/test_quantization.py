"""`model.quantize`: one arithmetic in training, scoring and search, against NumPy."""

from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tests.models.test_options import random_params
from tests.models.test_transformer import (
    BATCH,
    SMALLER,
    SOURCE,
    SOURCE_MASK,
    TARGET,
    TARGET_MASK,
    logits,
)
from tests.quick import quick
from tests.training import toy
from transformer_jax.errors import UserError
from transformer_jax.mixers.ssd import SSD
from transformer_jax.mixers.ssru import SSRU
from transformer_jax.models import api
from transformer_jax.models.calibration import largest_inputs, with_alphas
from transformer_jax.models.config import StackConfig
from transformer_jax.models.lora import Lora
from transformer_jax.models.paths import MEASURED, by_path, trained_paths
from transformer_jax.models.quantization import QUANTIZATIONS, Int8, Int8Dynamic
from transformer_jax.ops.sequences import reverse_prefix
from transformer_jax.positions.none import NoPosition
from transformer_jax.training.loop import fit

measure = jax.jit(largest_inputs, static_argnums=0)
KINDS = sorted(QUANTIZATIONS.keys() - {"none"})
STUDENT = replace(
    SMALLER,
    norm_placement="post",
    output_bias=True,
    decoder=StackConfig(num_layers=1, mixers=(SSRU(),)),
)


def quantized(kind, config=STUDENT, seed=0):
    config = replace(config, quantize=QUANTIZATIONS[kind]())
    params = random_params(replace(config, quantize=QUANTIZATIONS["none"]()), seed)
    if config.quantize.measures:
        params = with_alphas(config, params, [BATCH])
    return config, params


@pytest.mark.parametrize("kind", KINDS)
def test_it_is_near_the_model_of_floats_and_not_the_same(kind):
    config, params = quantized(kind)
    floats = {name: part for name, part in params.items() if name != MEASURED}
    want = logits(STUDENT, floats)
    error = np.abs(logits(config, params) - want)[np.asarray(TARGET_MASK)]
    assert 1e-4 < error.mean() < 0.1 * want.std()


@pytest.mark.parametrize("tied", quick(["all", "decoder", "inputs", "none"], "all", "none"))
@pytest.mark.parametrize("kind", KINDS)
def test_training_scoring_and_search_compute_the_same(kind, tied):
    config, params = quantized(kind, replace(STUDENT, tie_embeddings=tied))
    want = logits(config, params)
    log_probs = np.asarray(jax.nn.log_softmax(want))
    mask = np.asarray(TARGET_MASK)
    nll = -np.take_along_axis(log_probs, np.asarray(TARGET)[..., None], 2)[..., 0][mask].sum()
    _, nll_sum, _ = jax.jit(api.loss, static_argnums=0)(config, params, BATCH)
    np.testing.assert_allclose(nll_sum, nll, rtol=1e-5)
    held = jax.jit(api.for_decoding, static_argnums=(0, 2))(config, params, "float")
    sentence, state = api.encode(config, held, SOURCE, SOURCE_MASK, max_length=TARGET.shape[1])
    decode_step = jax.jit(api.decode_step, static_argnums=0)
    for t, tokens_B in enumerate(np.asarray(api.shift_right(TARGET)).T):
        tokens = jnp.asarray(tokens_B)[:, None]
        step, state = decode_step(config, held, tokens, jnp.int32(t), state, sentence)
        rows = mask[:, t]
        error = np.abs(np.asarray(step)[rows, 0] - want[rows, t])
        # A sum in another order may be rounded to the next number: most are equal.
        assert np.median(error) < 1e-5 and error.max() < 0.05 * want.std()


@pytest.mark.parametrize("kind", KINDS)
def test_whole_numbers_give_the_logits_of_the_simulation(kind):
    """To the bit, of every layer."""
    config, params = quantized(kind)
    held = jax.jit(api.for_decoding, static_argnums=0)(config, params)
    np.testing.assert_array_equal(logits(config, held), logits(config, params))


@pytest.mark.parametrize("kind", KINDS)
def test_every_trained_parameter_has_a_gradient(kind):
    config, params = quantized(kind)
    gradients = jax.jit(jax.grad(lambda p: api.loss(config, p, BATCH)[0]))(params)
    plain = {name: part for name, part in params.items() if name != MEASURED}
    floats = jax.jit(jax.grad(lambda p: api.loss(STUDENT, p, BATCH)[0]))(plain)
    trained = trained_paths(None, params)
    assert trained == by_path(plain).keys()
    of_floats = by_path(floats)
    for path, gradient in by_path(gradients).items():
        gradient = np.asarray(gradient).ravel()
        if path not in trained:
            assert not gradient.any()  # the measured factors stay
            continue
        other = np.asarray(of_floats[path]).ravel()
        assert np.isfinite(gradient).all() and gradient.any()
        cosine = gradient @ other / np.linalg.norm(gradient) / np.linalg.norm(other)
        assert cosine > 0.8, path


def test_largest_inputs_of_the_first_layer():
    encoder = StackConfig(num_layers=1, position=NoPosition())
    config, params = quantized("int8", replace(SMALLER, norm_placement="post", encoder=encoder))
    floats = {name: part for name, part in params.items() if name != MEASURED}
    found = measure(config, floats, BATCH)
    assert found.keys() == by_path(params[MEASURED]).keys()
    table = np.asarray(floats["target_embedding"]["table"])
    words = table[np.asarray(SOURCE)] * np.sqrt(config.d_model)
    want = np.where(np.asarray(SOURCE_MASK)[..., None], np.abs(words), 0).max((1, 2))
    np.testing.assert_allclose(found["encoder/blocks_0/mixer/heads/query/kernel"], want, rtol=1e-5)


def test_largest_inputs_of_weights_that_read_in_both_directions():
    """They are the same of the sentences backwards."""
    mixers = (SSD(share_weights=True, state_size=4, chunk=4),)
    encoder = StackConfig(num_layers=1, mixers=mixers, position=NoPosition())
    config = replace(SMALLER, encoder=encoder)
    params, path = random_params(config), "encoder/blocks_0/mixer/forwards/out/kernel"
    backwards = BATCH | {"source": reverse_prefix(SOURCE[..., None], SOURCE_MASK)[..., 0]}
    found = [measure(config, params, batch)[path] for batch in (BATCH, backwards)]
    np.testing.assert_allclose(*found, rtol=1e-5)


def test_factors_are_those_of_all_sentences_without_padding():
    config, params = quantized("int8")
    whole = by_path(with_alphas(config, params, [BATCH])[MEASURED])
    rows = [jax.tree.map(lambda x, i=i: x[i : i + 1], BATCH) for i in range(3)]
    empty = jax.tree.map(jnp.zeros_like, rows[0])
    wide = {name: jnp.pad(x, ((0, 0), (0, 4))) for name, x in rows[0].items()}
    for parts in (rows, [*rows, empty], [wide, *rows[1:]]):
        for path, factor in by_path(with_alphas(config, params, parts)[MEASURED]).items():
            np.testing.assert_allclose(factor, whole[path], rtol=1e-5)
    floats = {name: part for name, part in params.items() if name != MEASURED}
    for path, x_B in measure(config, floats, BATCH).items():
        x_B = np.asarray(x_B, np.float64)
        np.testing.assert_allclose(whole[path], 127 / (x_B.mean() + 1.1 * x_B.std()), rtol=1e-4)


def test_without_text_there_is_nothing_to_measure():
    config, params = quantized("int8")
    with pytest.raises(UserError, match="no text to measure"):
        with_alphas(config, params, [])


@pytest.mark.parametrize("kind", quick(KINDS, "int8"))
def test_scanned_layers_and_an_adapter(kind):
    config = replace(
        SMALLER, encoder=StackConfig(num_layers=3), adapter=Lora(rank=2, targets=("*/kernel",))
    )
    merged_config, merged = quantized(kind, replace(config, adapter=SMALLER.adapter))
    adapted = merged | {"lora": api.init(config, jax.random.key(0))["lora"]}  # adds nothing yet
    config = replace(merged_config, adapter=config.adapter, scan_layers=True)
    got, want = logits(config, adapted), logits(merged_config, merged)
    assert np.median(np.abs(got - want)) < 1e-5


def test_matrices_are_held_as_whole_numbers_and_laid_out():
    config, params = quantized("int8")
    held = api.for_decoding(config, params)
    axes = api.decoding_axes(config)
    jax.tree.map(lambda x, names: (), held, axes)  # one structure
    table = held["target_embedding"]["table"]
    assert table.everywhere and MEASURED not in held
    assert table.values.dtype == jnp.int8
    again = api.for_decoding(config, held)
    jax.tree.map(np.testing.assert_array_equal, again, held)
    of_weights = api.for_decoding(config, params, "int8")  # it is of int8 as it is
    jax.tree.map(np.testing.assert_array_equal, of_weights, held)


def test_bfloat16_products_are_exact():
    config, params = quantized("int8_dynamic")
    low = replace(config, matmul_dtype="bfloat16")
    np.testing.assert_allclose(logits(low, params), logits(config, params), rtol=1e-6, atol=1e-6)


def test_a_training_from_random_parameters_is_refused():
    model = replace(toy.MODEL, quantize=Int8())
    with pytest.raises(UserError, match=r"model\.quantize=int8 measures.*train\.init_from"):
        fit(model, toy.TRAIN, toy.batches_from)


def test_dynamic_int8_trains_from_the_start():
    state = fit(replace(toy.MODEL, quantize=Int8Dynamic()), toy.TRAIN, toy.batches_from)
    assert int(state.step) == toy.TRAIN.steps and int(state.skipped) == 0
