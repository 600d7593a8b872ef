"""Samples of a unigram model are drawn from SentencePiece's 64 best segmentations of the text."""

from collections import Counter
from itertools import chain

import numpy as np
import pytest

from tests.data.test_segmentation import MODELS, trained
from transformer_jax.data import unigram_sampling
from transformer_jax.data.sources.grammar import sentences as grammar
from transformer_jax.data.unigram_sampling import _NEVER, NBEST, BestSegmentations, _smallest_sums


@pytest.fixture(scope="module")
def lines():
    return list(chain.from_iterable(grammar.split_pairs("validation")))


def unigram(lines, **options):
    vocab_size = 660 if options.get("byte_fallback") else 400
    return trained(lines, **options | {"model_type": "unigram", "vocab_size": vocab_size})


@pytest.fixture(scope="module")
def processor(lines):
    return unigram(lines)


def sampler_of(processor, **options):
    scores = np.array([processor.get_score(i) for i in range(processor.vocab_size())])
    return BestSegmentations(processor, scores, **options)


def all_of(sampler, text, count):
    """With alpha = 0 all are equally probable: those that `count` numbers far apart give."""
    uniform = (np.arange(count) + 0.5) / count
    return [tuple(ids) for ids in sampler._sample([sampler._words(text)] * count, uniform, 0.0)]


def log_probability(processor, ids):
    return sum(processor.get_score(i) for i in ids)


def assert_same_candidates(processor, sampler, text):
    """The same segmentations, up to which of those that are as probable as the last are in."""
    theirs = [tuple(ids) for ids in processor.nbest_encode_as_ids(text, NBEST)]
    ours = all_of(sampler, text, len(theirs))
    assert len(set(ours)) == len(theirs), text
    scores = [sorted(log_probability(processor, ids) for ids in some) for some in (ours, theirs)]
    np.testing.assert_allclose(scores[0], scores[1], atol=1e-3, err_msg=text)
    last = scores[1][0] + 1e-3 if len(theirs) == NBEST else -np.inf
    certain = [{ids for ids in s if log_probability(processor, ids) > last} for s in (ours, theirs)]
    assert certain[0] == certain[1], text
    assert ours[0] == tuple(processor.encode(text)) or np.isclose(scores[1][-1], scores[1][-2])


OPTIONS = MODELS | {
    "other normalisation": {"normalization_rule_name": "nmt_nfkc_cf"},
    "user-defined symbols": {"user_defined_symbols": ["<2de>", "{x}"]},
}


@pytest.mark.parametrize("name", OPTIONS)
def test_the_candidates_are_sentencepieces(name, lines):
    processor = unigram([*lines, "a  b   c"], **OPTIONS[name])
    sampler = sampler_of(processor)
    odd = [
        "",
        " ",
        "  Haus   der ",
        "der\u2581Tisch",
        "☃☃ ☃é Tisch☃ ☃",
        "\tx\u3000die\n",
        "x",
        "ﬁ½",
    ]
    symbols = ["<2de> der", "der<2de>", "{x}", "a {x} b"]
    for text in [*lines[:12], *lines[-12:], *odd, *symbols]:
        assert_same_candidates(processor, sampler, text)


def test_a_text_without_spaces_is_one_word(lines):
    joined = [line.replace(" ", "") for line in lines]
    processor = unigram(joined)
    sampler = sampler_of(processor)
    for text in joined[:12]:
        assert_same_candidates(processor, sampler, text)


def test_a_user_defined_symbol_is_not_cut(lines):
    processor = unigram(lines, user_defined_symbols=["<2de>"])
    symbol = processor.piece_to_id("<2de>")
    samples = sampler_of(processor).sample(["<2de>"] * 500 + ["a<2de>"] * 500, range(1000), 0.2)
    assert {len(ids) for ids in samples} == {2, 3}
    assert all(symbol in ids for ids in samples)


@pytest.mark.parametrize("alpha", [0.2, 0.5])
def test_frequencies_are_proportional_to_powers_of_the_probability(processor, lines, alpha):
    text, count = lines[0], 20_000
    candidates = processor.nbest_encode_as_ids(text, NBEST)
    assert len(candidates) == NBEST
    weights = np.exp([alpha * log_probability(processor, ids) for ids in candidates])
    counts = Counter(map(tuple, sampler_of(processor).sample([text] * count, range(count), alpha)))
    seen = np.array([counts[tuple(ids)] for ids in candidates])
    assert seen.sum() == count
    expected = weights / weights.sum()
    error = 4.5 * np.sqrt(expected * (1 - expected) / count) + 1 / count
    np.testing.assert_array_less(np.abs(seen / count - expected), error)
    assert sampler_of(processor).sample([text], [0], 100.0) == [processor.encode(text)]


def test_a_sample_depends_on_its_text_and_seed_alone(processor, lines, monkeypatch):
    texts = [*lines[:60], "", "a", lines[0], " ".join(lines[:20])]
    seeds = np.arange(len(texts))
    together = sampler_of(processor)
    expected = together.sample(texts, seeds, 0.1)
    assert together.sample(texts, seeds, 0.1) == expected  # now from the cache
    alone = sampler_of(processor)
    assert [alone.sample([t], [i], 0.1)[0] for i, t in enumerate(texts)] == expected
    for room in (0, 20_000):
        small = sampler_of(processor, room=room)
        assert small.sample(texts[::-1], seeds[::-1], 0.1)[::-1] == expected
        assert small.sample(texts, seeds, 0.1) == expected
        assert bool(small._cache) == bool(room) and len(small._cache) < len(together._cache)
    monkeypatch.setattr(unigram_sampling, "_TEXTS", 3)
    assert sampler_of(processor).sample(texts, seeds, 0.1) == expected


@pytest.mark.parametrize("symbols", [[], ["isch", "<2de>", "ein"]])
def test_short_lists_are_used_where_they_change_nothing(lines, symbols, monkeypatch):
    processor = unigram(lines, user_defined_symbols=symbols)
    texts = [" ".join(line.split()[:count]) for line in lines[-300:] for count in (1, 4, 7, 99)]
    texts += [f"{text}<2de>einisch" for text in texts[::9]]
    monkeypatch.setattr(unigram_sampling, "SHORT", NBEST)
    expected = sampler_of(processor).sample(texts, range(len(texts)), 0.02)
    for short in (2, 5, 16):
        monkeypatch.setattr(unigram_sampling, "SHORT", short)
        assert sampler_of(processor).sample(texts, range(len(texts)), 0.02) == expected


def test_where_scores_are_not_sentencepieces_all_candidates_are_known_at_once(lines, monkeypatch):
    monkeypatch.setattr(unigram_sampling, "SHORT", 4)
    sampler = sampler_of(unigram(lines, user_defined_symbols=["isch"]))
    words = [f"\u2581Fahrrad{middle}kaufen" for middle in ("isch", "☃", "die")]
    lists = sampler._lists(words, frozenset()).values()
    assert [best.is_enough for best in lists] == [True, True, False]
    assert all(len(best.penalties_N) >= 4 for best in lists)


def test_words_are_looked_up_once_while_the_cache_has_room(processor, lines):
    sampler = sampler_of(processor)
    sampler.sample(lines[:200], range(200), 0.1)
    sampler._processor = None
    assert len(sampler.sample(lines[:200], range(200), 0.1)) == 200


def test_smallest_sums_are_those_of_all_pairs_in_order():
    rng = np.random.default_rng(0)
    a_WN, b_WN = np.sort(rng.integers(0, 30, (2, 20, NBEST)))  # many are equal
    a_WN[:5, 3:] = b_WN[:3, 7:] = a_WN[5:10, 40:] = _NEVER
    sums_WN, places_WN = _smallest_sums(a_WN, b_WN)
    for a, b, sums, places in zip(a_WN, b_WN, sums_WN, places_WN, strict=True):
        every = sorted((a[i] + b[j], i, j) for i in range(NBEST) for j in range(NBEST))[:NBEST]
        exist = [(total, i, j) for total, i, j in every if total < _NEVER]
        ours = list(zip(sums, places // NBEST, places % NBEST, strict=True))
        assert ours[: len(exist)] == exist
        assert (sums[len(exist) :] == _NEVER).all()
