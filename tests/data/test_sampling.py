"""Samples are drawn from SentencePiece's 64 best segmentations, and depend on nothing else."""

from collections import Counter
from concurrent.futures import ProcessPoolExecutor
from dataclasses import replace
from itertools import chain
from multiprocessing import get_context

import numpy as np
import pytest

from transformer_jax.data.config import TokenizerConfig
from transformer_jax.data.mapped_tokenizer import MappedTokenizer, Vocabulary, mapped_tokenizer
from transformer_jax.data.sampling import NBEST, SubwordSampler
from transformer_jax.data.sources.grammar import sentences as grammar
from transformer_jax.data.tokenizer_pair import Tokenizers
from transformer_jax.data.tokenizer_training import train_tokenizer, vocabularies
from transformer_jax.errors import UserError

CONFIG = TokenizerConfig(vocab_size=400, byte_fallback=False)


@pytest.fixture(scope="module")
def lines():
    return list(chain.from_iterable(grammar.split_pairs("validation")))


@pytest.fixture(scope="module")
def tokenizer(lines):
    return train_tokenizer(CONFIG, lines)


def sampler_of(tokenizer, alpha=0.1, **options):
    return SubwordSampler(Tokenizers(tokenizer, tokenizer), alpha, **options)


def draws(sampler, texts, rows=None, epoch=0, side="source"):
    rows = np.arange(len(texts)) if rows is None else np.asarray(rows)
    return [tuple(ids) for ids in sampler(side, texts, rows, epoch)]


@pytest.mark.parametrize("alpha", [0.2, 0.5])
def test_frequencies_are_proportional_to_powers_of_the_probability(tokenizer, lines, alpha):
    text, count = lines[0], 20_000
    candidates, log_probs = tokenizer.nbest(text, NBEST)
    assert len(set(map(tuple, candidates))) == NBEST
    assert candidates[0] == tokenizer.encode(text)
    counts = Counter(draws(sampler_of(tokenizer, alpha), [text] * count))
    seen = np.array([counts[tuple(ids)] for ids in candidates])
    assert seen.sum() == count
    weights = np.exp(alpha * log_probs)
    expected = weights / weights.sum()
    error = 4.5 * np.sqrt(expected * (1 - expected) / count) + 1 / count
    np.testing.assert_array_less(np.abs(seen / count - expected), error)
    assert draws(sampler_of(tokenizer, 100.0), [text]) == [tuple(candidates[0])]


def test_log_probabilities_are_sentencepieces(tokenizer, lines):
    """Its own order is by the log-probability, so ours falls too, and is the sum over pieces."""
    for text in [*lines[:20], "", "a"]:
        segmentations, log_probs = tokenizer.nbest(text, NBEST)
        assert (np.diff(log_probs) < 1e-3).all()
        scores = [sum(map(tokenizer._processor.get_score, ids)) for ids in segmentations]
        np.testing.assert_allclose(log_probs, scores, atol=1e-9)


@pytest.mark.parametrize("byte_fallback", [True, False])
def test_samples_are_of_the_text(lines, byte_fallback):
    config = replace(CONFIG, vocab_size=660 if byte_fallback else 400, byte_fallback=byte_fallback)
    tokenizer = train_tokenizer(config, lines)
    texts = [*lines[:50], "", "x", lines[0].replace(" ", "")]
    texts += ["☃☃ ☃é Tisch☃"] * byte_fallback
    drawn = [draws(sampler_of(tokenizer), [text] * 8) for text in texts]
    assert all(
        tokenizer.decode(ids) == text
        for text, some in zip(texts, drawn, strict=True)
        for ids in some
    )
    assert all(len(set(some)) > 1 for some in drawn[:50])


def test_a_sample_depends_on_seed_epoch_side_pair_and_text_alone(tokenizer, lines):
    texts = [*lines[:60], "", "a", lines[0], " ".join(lines[:20])]
    together = sampler_of(tokenizer, seed=1)
    expected = draws(together, texts)
    assert draws(together, texts) == expected  # now from the cache
    alone = sampler_of(tokenizer, seed=1)
    assert [draws(alone, [text], [i])[0] for i, text in enumerate(texts)] == expected
    for room in (0, 40_000):
        small = sampler_of(tokenizer, seed=1, room=room)
        backwards = range(len(texts))[::-1]
        assert draws(small, texts[::-1], backwards)[::-1] == expected
        assert draws(small, texts) == expected
        assert bool(small._cache) == bool(room) and len(small._cache) < len(together._cache)
    others = [
        draws(together, texts, epoch=1),
        draws(together, texts, side="target"),
        draws(together, texts, rows=range(1, len(texts) + 1)),
        draws(sampler_of(tokenizer, seed=2), texts),
    ]
    assert all(sum(map(tuple.__ne__, expected, other)) > 30 for other in others)


def test_another_process_draws_the_same_samples(tokenizer, lines):
    sampler = sampler_of(tokenizer)
    with ProcessPoolExecutor(1, get_context("spawn")) as pool:
        elsewhere = pool.submit(sampler, "source", lines[:20], np.arange(20), 3).result()
    assert list(map(tuple, elsewhere)) == draws(sampler, lines[:20], epoch=3)


def test_tags_stay_at_the_beginning(tokenizer, lines):
    pieces = tuple(tokenizer.pieces(range(tokenizer.vocab_size)))
    tag = len(pieces)
    vocabulary = Vocabulary((*pieces, "<2fr>"), tags=(tag,), hidden=(tag,))
    tagged = MappedTokenizer(mapped_tokenizer(tokenizer.model, vocabulary))
    plain = draws(sampler_of(tokenizer), lines[:30])
    assert draws(sampler_of(tagged), lines[:30]) == plain
    with_tag = draws(sampler_of(tagged), [f"<2fr>{line}" for line in lines[:30]])
    assert with_tag == [(tag, *ids) for ids in plain]
    assert draws(sampler_of(tagged.with_prefix((tag,))), lines[:30]) == with_tag


def test_other_tokenizers_than_unigram_are_refused(lines):
    bpe = train_tokenizer(replace(CONFIG, kind="bpe"), lines)
    with pytest.raises(UserError, match=r"sampling_alpha: .* bpe .* set tokenizer\.kind=unigram"):
        sampler_of(bpe)
    config = replace(CONFIG, kind="bpe", sampling_alpha=0.1)
    with pytest.raises(UserError, match="sampling_alpha"):  # before a text is read
        vocabularies(config)
