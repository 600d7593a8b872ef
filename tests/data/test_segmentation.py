"""BPE dropout follows its published rule, whatever is cached, and never leaves the text."""

from collections import Counter
from io import BytesIO

import numpy as np
import pytest
import sentencepiece

from transformer_jax.data import bpe_dropout
from transformer_jax.data.bpe_dropout import BpeDropout
from transformer_jax.data.segmentation import segmenter
from transformer_jax.errors import UserError

WORDS = ["haus", "häuser", "hausbau", "bauen", "gebaut", "umbau", "aufbau", "hausaufgabe"]


def lines(count, seed=0, separator=" "):
    rng = np.random.default_rng(seed)
    return [separator.join(rng.choice(WORDS, rng.integers(1, 9))) for _ in range(count)]


def trained(text, **options):
    """The processor of a small BPE model of the text."""
    model = BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(text),
        model_writer=model,
        **{"vocab_size": 60, "model_type": "bpe", "minloglevel": 2, "num_threads": 1} | options,
    )
    return sentencepiece.SentencePieceProcessor(model_proto=model.getvalue())


@pytest.fixture(scope="module")
def processor():
    return trained(lines(300))


def dropout(processor, entries=bpe_dropout.CACHED_SEGMENTATIONS):
    scores = np.array([processor.get_score(i) for i in range(processor.vocab_size())])
    return BpeDropout(processor, scores, entries)


def draws(sampler, text, alpha, count):
    return [tuple(ids) for ids in sampler.sample([text] * count, range(count), alpha)]


def exact(processor, text, alpha):
    """The probability of each segmentation, by following both outcomes of every merge."""
    known = {processor.id_to_piece(i): processor.get_score(i) for i in range(len(processor))}
    result = Counter()

    def follow(pieces, dropped, probability):
        """`dropped` has (start, middle, end) of the pairs whose merge was dropped."""
        ends = np.cumsum([len(piece) for piece in pieces]).tolist()
        begins = [0, *ends]
        pairs = [
            (-known[left + right], i)
            for i, (left, right) in enumerate(zip(pieces, pieces[1:], strict=False))
            if left + right in known and (begins[i], ends[i], ends[i + 1]) not in dropped
        ]
        if not pairs:
            result[tuple(pieces)] += probability
            return
        _, i = min(pairs)
        place = (begins[i], ends[i], ends[i + 1])
        follow(pieces, dropped | {place}, probability * alpha)
        merged = [*pieces[:i], pieces[i] + pieces[i + 1], *pieces[i + 2 :]]
        follow(merged, dropped, probability * (1 - alpha))

    follow(list(processor.normalize(text)), frozenset(), 1.0)
    return {
        tuple(map(processor.piece_to_id, pieces)): probability
        for pieces, probability in result.items()
    }


def assert_same_frequencies(seen, expected, count):
    assert set(seen) <= set(expected)
    assert sum(expected.values()) == pytest.approx(1.0)
    for ids, probability in expected.items():
        error = 5 * np.sqrt(probability * (1 - probability) / count) + 2 / count
        assert abs(seen[ids] / count - probability) < error, ids


@pytest.mark.parametrize("alpha", [0.1, 0.5])
@pytest.mark.parametrize("text", ["hausbau", "umbau haus"])
@pytest.mark.parametrize("longest", [0, 32])
def test_frequencies_are_those_of_following_every_outcome(
    processor, text, alpha, longest, monkeypatch
):
    monkeypatch.setattr(bpe_dropout, "LONGEST_WORD", longest)
    expected = exact(processor, text, alpha)
    assert len(expected) > 4
    seen = Counter(draws(dropout(processor), text, alpha, 6000))
    assert_same_frequencies(seen, expected, 6000)


def test_sentencepieces_own_sampler_has_the_same_frequencies(processor):
    sentencepiece.set_random_generator_seed(1)
    text, alpha, count = "umbau haus", 0.3, 6000
    theirs = Counter(tuple(processor.sample_encode_as_ids(text, -1, alpha)) for _ in range(count))
    assert_same_frequencies(theirs, exact(processor, text, alpha), count)


def test_what_is_cached_changes_no_sample(processor, monkeypatch):
    text = lines(40, seed=1)
    samplers = [dropout(processor, entries) for entries in (0, 20, 10_000)]
    drawn = [[draws(sampler, line, 0.2, 5) for line in text] for sampler in samplers]
    assert drawn[0] == drawn[1] == drawn[2]
    assert [len(sampler._cache) for sampler in samplers[:2]] == [0, 20]
    assert draws(samplers[2], text[0], 0.2, 5) == drawn[0][0]  # now from the cache alone
    monkeypatch.setattr(bpe_dropout, "LONGEST_WORD", 5)
    assert [draws(samplers[2], line, 0.2, 5) for line in text] == drawn[0]


#: Options of a model; the last three have pieces with a space inside or at the end.
MODELS = {
    "as trained here": {"normalization_rule_name": "identity"},
    "byte fallback": {"byte_fallback": True, "vocab_size": 330},
    "no dummy prefix": {"add_dummy_prefix": False},
    "spaces are kept": {"remove_extra_whitespaces": False},
    "pieces of spaces": {"remove_extra_whitespaces": False, "allow_whitespace_only_pieces": True},
    "pieces across spaces": {"split_by_whitespace": False, "vocab_size": 90},
    "space as a suffix": {"treat_whitespace_as_suffix": True},
}


@pytest.mark.parametrize("name", MODELS)
def test_no_dropped_merge_is_the_models_own_segmentation(name):
    processor = trained([*lines(300), "a  b   c"] * 2, **MODELS[name])
    sampler = dropout(processor)
    odd = ["", " ", "  haus   bau ", "haus\u2581bau", "☃☃ ☃é haus☃ ☃", "\tx\u3000haus\n"]
    for line in [*lines(50, seed=2), *odd]:
        assert draws(sampler, line, 0.0, 1)[0] == tuple(processor.encode(line)), line
    crosses = any("\u2581" in processor.id_to_piece(i)[1:] for i in range(len(processor)))
    assert crosses == (name in list(MODELS)[-3:])


def test_samples_are_of_the_text_also_without_spaces():
    text = lines(200, separator="")
    processor = trained(text)
    sampler = dropout(processor)
    for line in text[:20]:
        samples = draws(sampler, line, 0.2, 5)
        assert {processor.decode(list(ids)) for ids in samples} == {line}
        assert len(set(samples)) > 1 or len(line) < 8


def test_dropping_every_merge_leaves_characters(processor):
    ids = draws(dropout(processor), "haus bau", 1.0, 1)[0]
    assert [processor.id_to_piece(i) for i in ids] == list("\u2581haus\u2581bau")


def test_a_probability_above_one_is_refused(processor):
    with pytest.raises(UserError, match=r"sampling_alpha=1\.5 .* set it to 1 or less"):
        segmenter(processor)(["haus"], [0], 1.5)
