"""Blocks of sentences: how documents are cut, stored, sampled and batched."""

from dataclasses import replace
from itertools import accumulate, chain, islice
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

from tests.data import listed
from tests.data.listed import text_of
from tests.data.test_pipeline import equal, needs_tensorflow
from tests.data.test_tokenizer import sentences
from transformer_jax.config import Config, override
from transformer_jax.data.batches import BatchPlan, Share, Stream, make_batch
from transformer_jax.data.blocks import Blocks, cut
from transformer_jax.data.config import BatchConfig, Corpus, DataConfig, TokenizerConfig
from transformer_jax.data.filters.duplicates import Duplicates
from transformer_jax.data.filters.lengths import LengthRatio
from transformer_jax.data.ids import ids_of_text
from transformer_jax.data.mapped_tokenizer import Tags
from transformer_jax.data.pipeline import through_tensorflow
from transformer_jax.data.sampling import SubwordSampler
from transformer_jax.data.sentences import IdCorpus
from transformer_jax.data.sources.base import BOUNDARY, Pair, Source
from transformer_jax.data.sources.files import Files
from transformer_jax.data.sources.grammar import Grammar
from transformer_jax.data.splits import count_pairs, read_documents, read_pairs, resolve
from transformer_jax.data.tokenizer_pair import Tokenizers, load_tokenizers
from transformer_jax.data.tokenizer_training import tokenizers_of_text, train_tokenizers
from transformer_jax.errors import UserError
from transformer_jax.runs.start import begin_new
from transformer_jax.vocabulary import EOS_ID

MIXTURE = (Blocks(tokens=60), Blocks(sentences=(1, 3)))
TOKENIZER = TokenizerConfig(vocab_size=340)


def greedy(lengths: list[tuple[int, int]], most: int) -> list[tuple[int, int]]:
    """The blocks of one document by the words of `Blocks.tokens`."""
    found, first = [], 0
    while first < len(lengths):
        last = first + 1
        while last < len(lengths):
            grown = lengths[first : last + 1]
            if any(sum(each[side] for each in grown) > most for side in (0, 1)):
                break
            last += 1
        found.append((first, last))
        first = last
    return found


def of_size(lengths: list[Any], count: int) -> list[tuple[int, int]]:
    starts = range(0, len(lengths), count)
    return [(first, min(first + count, len(lengths))) for first in starts]


@given(
    st.lists(st.lists(st.tuples(st.integers(1, 9), st.integers(1, 9)), min_size=1), max_size=6),
    st.integers(1, 25),
    st.lists(st.integers(1, 7), min_size=1, max_size=3),
)
@settings(max_examples=200)
def test_blocks_are_those_of_brute_force(documents, tokens, counts) -> None:
    begins = list(accumulate(map(len, documents), initial=0))
    slots = [
        np.cumsum([0, *(each[side] for each in chain(*documents))], dtype=np.int64)
        for side in (0, 1)
    ]
    is_last = np.zeros(begins[-1], bool)
    is_last[np.array(begins[1:], int) - 1] = True
    ways = [lambda lengths: greedy(lengths, tokens)]
    ways += [lambda lengths, count=count: of_size(lengths, count) for count in counts]
    expected = [
        (begin + first, begin + last)
        for way in ways
        for begin, document in zip(begins[:-1], documents, strict=True)
        for first, last in way(document)
    ]
    asked = [Blocks(tokens=tokens), Blocks(sentences=tuple(counts))]
    assert list(map(tuple, cut(asked, slots, is_last).T.tolist())) == expected


@pytest.fixture(scope="module")
def documents() -> list[list[Pair]]:
    """30 documents of 1 to 9 sentences, the German ones in other words."""
    lines = iter(sentences(count=400))
    rng = np.random.default_rng(0)
    sides = ((list(islice(lines, n)), list(islice(lines, n))) for n in rng.integers(1, 10, 30))
    return [list(zip(*both, strict=True)) for both in sides]


def stream(documents: list[list[Pair]]) -> list[Pair]:
    return [pair for document in documents for pair in (*document, BOUNDARY)]


@pytest.fixture(scope="module")
def tokenizers(documents: list[list[Pair]]) -> Tokenizers:
    return train_tokenizers(TOKENIZER, list(chain(*documents)), Tags(separator=True))


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("ids")


@pytest.fixture(scope="module")
def stored(documents: list[list[Pair]], tokenizers: Tokenizers, place: Path) -> IdCorpus:
    corpora = stream(documents[:20]), [BOUNDARY, *stream(documents[20:])[:-1], BOUNDARY, BOUNDARY]
    return listed.stored(text_of(corpora, place, blocks=MIXTURE), tokenizers)


@pytest.fixture(scope="module")
def corpus(stored: IdCorpus) -> IdCorpus:
    return stored.in_blocks(MIXTURE)


def texts_of(documents: list[list[Pair]], tokenizers: Tokenizers) -> list[list[list[Pair]]]:
    """The blocks of `MIXTURE`, one list of pairs each, of each of the two corpora."""
    made = []
    for part in (documents[:20], documents[20:]):
        pairs = list(chain(*part))
        slots = [
            np.cumsum([0, *(len(tokenizer.encode(pair[side])) + 1 for pair in pairs)])
            for side, tokenizer in enumerate((tokenizers.source, tokenizers.target))
        ]
        is_last = np.array([i == len(each) for each in part for i in range(1, len(each) + 1)])
        made.append([pairs[first:last] for first, last in cut(MIXTURE, slots, is_last).T])
    return made


def joined(texts: list[str], tokenizer: Any) -> list[int]:
    parts = [[*tokenizer.encode(text), tokenizer.separator] for text in texts]
    return list(chain(*parts))[:-1]


def test_a_block_is_its_sentences_joined_by_the_separator(documents, tokenizers, corpus) -> None:
    blocks = texts_of(documents, tokenizers)
    assert corpus.sizes == tuple(map(len, blocks))
    assert len(corpus) == sum(corpus.sizes)
    for i, block in enumerate(chain(*blocks)):
        for place, side in enumerate(("source", "target")):
            ids, tokenizer = getattr(corpus, side), getattr(tokenizers, side)
            expected = joined([pair[place] for pair in block], tokenizer)
            assert ids[i].tolist() == expected
            assert ids.lengths[i] == len(expected) + 1  # EOS
            padded, mask = ids.padded(np.array([i]), 2, ids.lengths[i] + 3)
            assert padded[0].tolist() == [*expected, EOS_ID, 0, 0, 0]
            assert mask.sum(axis=1).tolist() == [len(expected) + 1, 0]
    assert any(len(block) > 3 for block in blocks[0])


def test_nothing_is_copied_and_the_cache_serves_all_blocks(
    documents, tokenizers, stored, corpus, place
) -> None:
    assert corpus.source.ids is stored.source.ids
    corpora = stream(documents[:20]), [BOUNDARY, *stream(documents[20:])[:-1], BOUNDARY, BOUNDARY]
    ways = (MIXTURE, MIXTURE[1:], (Blocks(tokens=61),))
    others = [ids_of_text(text_of(corpora, place, blocks=each), tokenizers) for each in ways]
    assert all(isinstance(each.source.ids, np.memmap) for each in others)
    prints = [each.fingerprint for each in (corpus, *others)]
    assert prints[0] == prints[1] and len(set(prints)) == 3
    plain = ids_of_text(text_of([list(chain(*documents))], place), tokenizers)
    assert len(plain) == len(list(chain(*documents)))
    assert len(list(place.iterdir())) == 2


def test_chunks_and_an_empty_corpus_change_nothing(
    documents, tokenizers, stored, tmp_path, monkeypatch
) -> None:
    monkeypatch.setattr("transformer_jax.data.ids._CHUNK", 4)
    corpora = stream(documents[:20]), [], stream(documents[20:])
    small = listed.stored(text_of(corpora, tmp_path, blocks=MIXTURE), tokenizers)
    np.testing.assert_array_equal(small.source.ids, stored.source.ids)
    np.testing.assert_array_equal(small.target.offsets, stored.target.offsets)
    assert small.sizes == (stored.sizes[0], 0, stored.sizes[1])
    assert small.in_blocks(MIXTURE).sizes[1] == 0
    assert len(ids_of_text(text_of([[]], tmp_path, blocks=MIXTURE), tokenizers)) == 0


def plan_of(corpus: IdCorpus, rates: tuple[float, ...] = (1.0, 0.5)) -> BatchPlan:
    config = BatchConfig(tokens=400, max_length=55, num_buckets=4, seed=1)
    corpora = list(zip(corpus.sizes, rates, strict=True))
    return BatchPlan(corpus.source.lengths, corpus.target.lengths, config, corpora=corpora)


@needs_tensorflow
def test_the_stream_is_the_batches_from_any_position(corpus: IdCorpus) -> None:
    plan, share = plan_of(corpus), Share(row_multiple=3)
    assert plan.num_skipped > 0  # longer than max_length
    count = plan.batches_per_epoch + 4
    expected = [make_batch(Stream(corpus, plan, share), position) for position in range(count)]
    for start in (0, 5):
        made = through_tensorflow(Stream(corpus, plan, share), start)
        assert all(map(equal, islice(made, count - start), expected[start:]))
        made.close()


def test_each_sentence_of_a_block_is_sampled(documents, tokenizers, corpus, tmp_path) -> None:
    sampler = SubwordSampler(tokenizers, 0.3, seed=4)
    corpora = stream(documents[:20]), stream(documents[20:])
    sampled = ids_of_text(text_of(corpora, tmp_path, blocks=MIXTURE), tokenizers, sampler)
    assert (sampled.source.slots >= corpus.source.slots).all()
    plan = plan_of(sampled, rates=(1.0, 1.0))
    pairs, differs = list(chain(*documents)), 0
    for position in range(plan.batches_per_epoch, plan.batches_per_epoch + 9):  # in epoch 1
        (_, *widths), rows = plan.rows(position)
        batch = make_batch(Stream(sampled, plan, sampler=sampler), position)
        for place, side in enumerate(("source", "target")):
            ids, separator = getattr(sampled, side), getattr(tokenizers, side).separator
            for row, found in zip(rows.tolist(), batch[side].tolist(), strict=False):
                members = np.arange(ids.arrays["first"][row], ids.arrays["last"][row])
                drawn = sampler(side, [pairs[i][place] for i in members], members, 1)
                expected = list(chain(*([*each, separator] for each in drawn)))[:-1]
                if len(expected) >= widths[place]:
                    expected = ids[row].tolist()
                differs += expected != ids[row].tolist()
                assert found == [*expected, EOS_ID, *[0] * (widths[place] - len(expected) - 1)]
    assert differs > 20


def write(folder: Path, documents: list[list[Pair]]) -> Files:
    return replace(listed.write(folder, stream(documents)[:-1]), documents=True)


@pytest.fixture
def data(documents: list[list[Pair]], tmp_path: Path) -> DataConfig:
    source = write(tmp_path, documents)
    return resolve(DataConfig(source, cache_dir=str(tmp_path / "cache"), blocks=MIXTURE))


def test_the_text_of_a_run_is_read_in_blocks(data, documents, tokenizers) -> None:
    assert list(read_pairs(data, "train")) == list(chain(*documents))
    made = tokenizers_of_text(TOKENIZER, data)
    corpus = ids_of_text(data, made)
    assert made.source.model == tokenizers.source.model
    first, second = texts_of(documents[:20], made)[0], texts_of(documents, made)[1]
    assert corpus.sizes == (len(first) + len(second),)
    expected = ids_of_text(text_of([stream(documents)], data.cache_dir, blocks=MIXTURE), made)
    assert corpus.source.ids.tolist() == expected.source.ids.tolist()
    # Without blocks the boundaries are gone.
    plain = ids_of_text(replace(data, blocks=()), made)
    assert len(plain) == len(list(chain(*documents))) == count_pairs(data, 10**6)
    assert plain.source[3].tolist() == made.source.encode(list(chain(*documents))[3][0])


def test_filters_and_held_out_pairs_leave_boundaries_in_place(data, documents, tokenizers) -> None:
    """Of each document the first pair comes again, and one pair has an empty side."""
    repeated = [[document[0], *document, ("odd", "")] for document in documents]
    place = Path(data.source.train_source[0]).parent  # type: ignore[attr-defined]
    source = write(place, repeated)
    count = sum(map(len, repeated[-2:])) - 1  # all but a pair of the last two documents
    chosen = replace(
        data,
        source=source,
        filters=(Duplicates(), LengthRatio(most=1000)),
        blocks=(Blocks(sentences=(100,)),),
        validation_from_train=count,
    )
    kept = [[pair for pair in document if pair[1]] for document in documents[:-2]]
    corpus = ids_of_text(chosen, tokenizers)
    expected = [*kept, repeated[-2][:1]]
    assert [corpus.source[i].tolist() for i in range(len(corpus))] == [
        joined([source for source, _ in document], tokenizers.source) for document in expected
    ]
    held_out = [repeated[-2][1:], repeated[-1]]
    assert list(read_documents(chosen, "validation")) == held_out
    assert list(read_pairs(chosen, "validation")) == list(chain(*held_out))
    assert list(read_documents(chosen, "train")) == [*repeated[:-2], repeated[-2][:1]]


def test_tags_begin_each_sentence_and_reversed_corpora_have_the_same_documents(
    data, documents
) -> None:
    corpora = (Corpus(data.source), Corpus(data.source, reverse=True, tag="<bt>"))
    both = resolve(replace(data, source=Files(), corpora=corpora, blocks=MIXTURE[1:]))
    made = tokenizers_of_text(TOKENIZER, both)
    corpus = ids_of_text(both, made)
    assert made.source.pieces(range(336, 340)) == ["<2de>", "<2en>", "<bt>", "<sep>"]
    assert made.source.vocab_size == 340
    place, three = len(list(chain(*documents))), documents[0][:3]
    for begin, tags, side in ((0, "<2de>", 0), (corpus.sizes[0], "<bt><2en>", 1)):
        expected = joined([f"{tags} {pair[side]}" for pair in three], made.source)
        assert corpus.source[begin + place].tolist() == expected
        expected = joined([pair[1 - side] for pair in three], made.target)
        assert corpus.target[begin + place].tolist() == expected


def test_the_separator_is_a_piece_of_both_vocabularies(documents, tmp_path) -> None:
    pairs, tags = list(chain(*documents)), Tags(separator=True)
    apart = replace(TOKENIZER, joint=False)
    two = train_tokenizers(apart, pairs, tags)
    assert (two.source.separator, two.target.separator) == (339, 339)
    for tokenizer in (two.source, two.target):
        ids = [*tokenizer.encode("lo mi."), 339, *tokenizer.encode("tür")]
        assert tokenizer.decode(ids) == "lo mi. tür"
        # It is no tag: the same letters in a text are a text.
        assert 339 not in tokenizer.encode("<sep> lo") + tokenizer.encode("lo<sep>")
        assert tokenizer.decode(tokenizer.encode("<sep> lo <sep>")) == "<sep> lo <sep>"
    two.save(tmp_path / "two")
    assert load_tokenizers(tmp_path / "two").target.separator == 339
    plain = train_tokenizers(apart, pairs)
    with pytest.raises(ValueError, match="has no piece <sep>"):
        ids_of_text(text_of([stream([pairs])], tmp_path, blocks=MIXTURE), plain)


@pytest.mark.parametrize(
    ("source", "advice"),
    [
        (Grammar(), "take another source, such as files with documents=true"),
        (Files(("a.en",), ("a.de",)), "set its option data.source.documents"),
    ],
)
def test_documents_must_be_told(data: DataConfig, source: Source, advice: str) -> None:
    message = f"data.blocks: the source of en-de does not tell where documents end: {advice}"
    with pytest.raises(UserError, match=f"^{message}[^\n]*$"):
        resolve(replace(data, source=source))


@pytest.mark.parametrize(
    ("blocks", "message"),
    [
        ("blocks(tokens=5,sentences=[5])", "data.blocks: give tokens or sentences, as in"),
        ("blocks(tokens=65)", r"tokens=65\) are longer than 64 pieces: set batch.max_length and "),
    ],
)
def test_blocks_that_cannot_be_are_refused_at_the_start(blocks: str, message: str) -> None:
    flags = {"batch.max_length": 64, "data.blocks": f"blocks(sentences=[2]),{blocks}"}
    with pytest.raises(UserError, match=message):
        begin_new(override(Config(), flags))
