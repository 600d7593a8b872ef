"""Word dropout zeroes whole embeddings of the input, on each side by its own rate."""

from dataclasses import replace

import jax
import numpy as np
import pytest

from transformer_jax.layers.dropout import Dropout
from transformer_jax.models import api
from transformer_jax.models.config import ModelConfig, StackConfig
from transformer_jax.models.transformer import Transformer

MODEL = ModelConfig(
    source_vocab_size=50,
    target_vocab_size=50,
    d_model=8,
    d_ff=8,
    num_heads=1,
    encoder=StackConfig(num_layers=1),
    decoder=StackConfig(num_layers=1),
    dropout_rate=0.2,
)
PARAMS = api.init(MODEL, jax.random.key(0))
ROWS, LENGTH = 64, 40


def batch():
    rng = np.random.default_rng(0)
    mask = np.arange(LENGTH) < rng.integers(1, LENGTH + 1, ROWS)[:, None]
    source, target = (rng.integers(4, 50, (ROWS, LENGTH)).astype(np.int32) for _ in range(2))
    return {"source": source, "source_mask": mask, "target": target, "target_mask": mask}


BATCH = batch()


def with_rates(source, target):
    return replace(
        MODEL,
        encoder=replace(MODEL.encoder, word_dropout=source),
        decoder=replace(MODEL.decoder, word_dropout=target),
    )


def words(model, rng):
    """The word embeddings of both sides, before and after word dropout: each [B, L, D]."""
    ids = BATCH["source"], np.asarray(api.shift_right(BATCH["target"]))
    _, seen = Transformer(model).apply(
        {"params": PARAMS},
        *(ids[0], BATCH["source_mask"], ids[1], BATCH["target_mask"]),
        rngs={} if rng is None else {"dropout": rng},
        capture_intermediates=lambda module, _: (
            isinstance(module, Dropout) and module.whole_vectors
        ),
        mutable=["intermediates"],
    )
    table = PARAMS["target_embedding"]["table"] * np.sqrt(MODEL.d_model)
    after = [
        np.asarray(seen["intermediates"][side]["word_dropout"]["__call__"][0])
        for side in ("encoder", "decoder")
    ]
    return [np.asarray(table[side_ids]) for side_ids in ids], after


@pytest.mark.parametrize("rates", [(0.1, 0.3), (0.4, 0.0), (0.0, 0.2)])
def test_the_share_of_each_side_is_zero_and_the_rest_scaled(rates):
    before, after = words(with_rates(*rates), jax.random.key(1))
    for rate, old, new in zip(rates, before, after, strict=True):
        is_zero = (new == 0).all(axis=-1)
        assert abs(is_zero.mean() - rate) <= 4 * np.sqrt(rate * (1 - rate) / is_zero.size)
        np.testing.assert_allclose(new[~is_zero], old[~is_zero] / (1 - rate), rtol=1e-5)
    # Any position is dropped: BOS, which is the first of the decoder, too.
    if rates[1]:
        assert 0 < (after[1][:, 0] == 0).all(axis=-1).mean() < 1


def test_without_a_key_nothing_is_dropped():
    before, after = words(with_rates(0.5, 0.5), None)
    for old, new in zip(before, after, strict=True):
        np.testing.assert_allclose(new, old, rtol=1e-6)


def loss(model, params=PARAMS, rng=jax.random.key(2)):  # noqa: B008 (a constant)
    return api.loss(model, params, BATCH, label_smoothing=0.1, rng=rng)


def test_rates_of_zero_are_the_same_program():
    def program(model):
        return str(jax.make_jaxpr(lambda p: loss(model, p))(PARAMS))

    assert program(with_rates(0.0, 0.0)) == program(MODEL)
    assert program(with_rates(0.1, 0.0)) != program(MODEL) != program(with_rates(0.0, 0.1))


def test_labels_and_the_number_of_tokens_stay():
    """With everything dropped, the labels alone teach: the loss is finite and its count whole."""
    model = replace(with_rates(0.999, 0.999), dropout_rate=0.0)
    loss_sum, nll_sum, tokens = loss(model)
    assert np.isfinite(loss_sum) and nll_sum > 0 and tokens == BATCH["target_mask"].sum()


def test_what_is_dropped_of_padding_has_no_influence():
    """Other ids at padding change nothing, whatever is dropped."""
    model = with_rates(0.3, 0.3)
    other = {**BATCH, "source": np.where(BATCH["source_mask"], BATCH["source"], 7)}
    one, two = (api.loss(model, PARAMS, each, rng=jax.random.key(2))[0] for each in (BATCH, other))
    np.testing.assert_allclose(one, two, rtol=1e-6)
