"""Alignments of translations, read from cross-attention."""

from dataclasses import replace

import jax
import numpy as np
import pytest

import transformer_jax as tj
from tests.small import small_model
from transformer_jax.data.sources.grammar.sentences import generate
from transformer_jax.mixers.registry import CROSS_MIXERS
from transformer_jax.models import api
from transformer_jax.translation import text_batches
from transformer_jax.translation.model import Model
from transformer_jax.viewing.attention import attention_weights

PAIRS = generate(5, 60)
MODEL = small_model(400, both=tj.StackConfig(num_layers=2), max_length=64)
SOURCES, TARGETS = map(list, zip(*PAIRS[:5], strict=True))


@pytest.fixture(scope="module")
def tokenizers():
    return tj.train_tokenizers(tj.TokenizerConfig(vocab_size=400), PAIRS)


def make(model, tokenizers, seed=0) -> tj.Translator:
    # Larger than they start, so that attention is sure of something.
    params = jax.tree.map(lambda x: 1.5 * x, api.init(model, jax.random.key(seed)))
    return tj.Translator(
        model, params, tokenizers, tj.DecodeConfig(method=tj.Greedy(), batch_size=4)
    )


def naive(translator, tokenizers, source, target) -> list[tuple[int, int]]:
    """By the drawn attention and the texts of the pieces alone."""
    ids = [
        tokenizer.encode(text)
        for tokenizer, text in zip(
            (tokenizers.source, tokenizers.target), (source, target), strict=True
        )
    ]
    ends = [[*each, 2] for each in ids]
    weights = attention_weights(translator.model.members[0], translator.params, *ends)["cross.1"]
    looks = weights.mean(axis=0)[:-1, :-1]
    numbers = []
    for each in ids:
        begins = [piece.startswith("▁") for piece in tokenizers.source.pieces(each)]
        numbers.append(np.cumsum(begins) - 1)
    sums = np.zeros((numbers[1][-1] + 1, numbers[0][-1] + 1))
    np.add.at(sums, (numbers[1][:, None], numbers[0][None]), looks)
    return [(int(row.argmax()), word) for word, row in enumerate(sums)]


def test_an_alignment_is_what_the_last_cross_attention_shows(tokenizers):
    translator = make(MODEL, tokenizers)
    links = translator.align(SOURCES, TARGETS)
    assert links == [naive(translator, tokenizers, *pair) for pair in PAIRS[:5]]
    assert len({source for each in links for source, _ in each}) > 3


def test_it_depends_on_its_sentence_alone(tokenizers, monkeypatch):
    translator = make(MODEL, tokenizers)
    together = translator.align(SOURCES, TARGETS)
    assert [translator.align([s], [t])[0] for s, t in PAIRS[:5]] == together
    assert translator.align(SOURCES[::-1], TARGETS[::-1]) == together[::-1]
    monkeypatch.setattr(text_batches, "padded_length", lambda length, limit: limit)
    assert translator.align(SOURCES, TARGETS) == together


def test_translations_are_aligned_by_their_tokens(tokenizers):
    translator = make(MODEL, tokenizers)
    best = [found[0] for found in translator.n_best(["", *SOURCES], 1)]
    links = translator.align(["", *SOURCES], [each.tokens for each in best])
    assert links[0] == []
    for each, of_sentence in zip(best, links, strict=True):
        count = len(each.text.encode().split())
        assert [target for _, target in of_sentence] == list(range(count))


def test_the_adapter_counts(tokenizers):
    from transformer_jax.models.lora import Lora

    model = replace(MODEL, adapter=Lora(rank=2))
    params = jax.tree.map(lambda x: x + 0.3, api.init(model, jax.random.key(0)))
    merged = tj.Translator(*api.merge_adapter(model, params), tokenizers)
    assert tj.Translator(model, params, tokenizers).align(SOURCES, TARGETS) == merged.align(
        SOURCES, TARGETS
    )


def test_models_align_together(tokenizers):
    one = make(MODEL, tokenizers)
    twice = tj.Translator(Model((MODEL, MODEL)), (one.params, one.params), tokenizers)
    assert twice.align(SOURCES, TARGETS) == one.align(SOURCES, TARGETS)


@pytest.mark.parametrize("name", [name for name in CROSS_MIXERS if name != "full"])
def test_a_mixer_without_weights_is_named(tokenizers, name):
    translator = make(replace(MODEL, cross=CROSS_MIXERS[name]()), tokenizers)
    with pytest.raises(tj.UserError, match=f"model.cross={name} has none"):
        translator.align(SOURCES, TARGETS)
