"""Documents: every sentence gets one translation, whatever the model makes of a block."""

import itertools
from dataclasses import replace

import numpy as np
from hypothesis import given, settings, strategies as st

from transformer_jax.translation.documents import Room, Tally, translate_documents
from transformer_jax.vocabulary import EOS_ID

SOURCE_SEP, TARGET_SEP = 8, 9
ROOM = Room(block=12, context=4, separators=(SOURCE_SEP, TARGET_SEP), sentence=12)

sentences = st.lists(st.integers(10, 20), min_size=1, max_size=14)
documents = st.lists(st.lists(sentences, max_size=9), max_size=4)


def split(ids, separator):
    return [
        list(part)
        for is_separator, part in itertools.groupby(ids, lambda i: i == separator)
        if not is_separator
    ]


class Model:
    """Translates piece i as i + 100, and now and then joins, drops or doubles sentences."""

    def __init__(self, errors: int = 0) -> None:
        self.draw = np.random.default_rng(errors)
        self.errors, self.seen, self.numbers = errors, [], []

    def __call__(self, blocks, numbers):
        self.numbers += numbers
        return [list(self.one(block.source, block.prefix)) for block in blocks]

    def one(self, source, prefix):
        parts = split(source, SOURCE_SEP)
        self.seen.append((parts, split(prefix, TARGET_SEP)))
        known = len(split(prefix, TARGET_SEP))
        assert known < len(parts)
        # The context of the target is the translation of the context of the source.
        assert split(prefix, TARGET_SEP) == [[i + 100 for i in one] for one in parts[:known]]
        yield from prefix
        new = [[i + 100 for i in one] for one in parts[known:]]
        if self.errors and self.draw.random() < 0.6:
            kind = self.draw.integers(4)
            if kind == 0 and len(new) > 1:
                new = [new[0] + new[1], *new[2:]]
            elif kind == 1 and len(new) > 1:
                new = [*new, new[-1]]
            elif kind == 3 and len(new) > 1:
                new = [[], *new[1:]]
            elif kind == 2:  # it did not come to an end
                yield from itertools.chain(*([*one, TARGET_SEP] for one in new[:-1]), new[-1])
                return
        for number, one in enumerate(new):
            yield from [TARGET_SEP, *one] if number else one
        yield EOS_ID


def wanted(texts):
    return [[[i + 100 for i in sentence] for sentence in document] for document in texts]


@settings(max_examples=200)
@given(documents, st.integers(0, 3))
def test_each_sentence_has_its_own_translation_however_blocks_fail(texts, errors):
    tally, counts = Tally(), []
    found = translate_documents(texts, Model(errors), ROOM, tally, counts.append)
    assert found == wanted(texts)
    assert sum(counts) == sum(map(len, texts))
    assert tally.divided <= tally.blocks and (errors or not tally.divided)


@settings(max_examples=200)
@given(documents)
def test_blocks_fit_their_room_and_contexts_are_the_sentences_before(texts):
    model = Model()
    translate_documents(texts, model, ROOM, Tally())
    long_ones = {tuple(one) for document in texts for one in document if len(one) >= ROOM.block}
    for parts, context in model.seen:
        slots = sum(len(one) + 1 for one in parts)
        assert slots <= ROOM.block or (len(parts) == 1 and tuple(parts[0]) in long_ones)
        assert sum(len(one) + 1 for one in context) <= ROOM.context


def test_what_is_divided_is_counted():
    class Joins(Model):
        def one(self, source, prefix):
            known = split(prefix, TARGET_SEP)
            new = split(source, SOURCE_SEP)[len(known) :]
            return [*prefix, *(i + 100 for one in new for i in one), EOS_ID]

    tally = Tally()
    texts = [[[10], [11], [12]], [[13]], []]
    assert translate_documents(texts, Joins(), ROOM, tally) == wanted(texts)
    assert tally == Tally(blocks=2, divided=1, alone=3, sentences=4)
    assert str(tally).startswith("1 of 2 blocks (50.0%) had another number of sentences")


def test_a_block_has_as_many_sentences_as_in_training():
    model = Model()
    room = replace(ROOM, block=100, context=50, sentences=4)
    translate_documents([[[10 + i] for i in range(7)]], model, room, Tally())
    assert [(len(parts), len(context)) for parts, context in model.seen] == [(4, 0), (4, 2), (3, 2)]


def test_translations_that_are_longer_than_their_sources_leave_room():
    class Longer(Model):
        def one(self, source, prefix):
            new = split(source, SOURCE_SEP)[len(split(prefix, TARGET_SEP)) :]
            target = [i for each in new for i in (*each, *each, *each, TARGET_SEP)]
            whole = [*prefix, *target[:-1], EOS_ID]
            self.seen.append(len(whole))
            return whole if len(whole) <= 40 else whole[:39]  # as one that the limit cut

    tally, texts = Tally(), [[[10, 11, 12]] * 40]
    room = replace(ROOM, block=40, context=0)
    found = translate_documents(texts, Longer(), room, tally)
    assert found == [[[10, 11, 12] * 3] * 40]
    assert tally.divided == 1, "only the first block does not know how long translations are"


def test_sentences_are_numbered_in_their_document():
    texts = [[[10] * 5, [11] * 5, [12] * 5], [[13] * 9]]
    for first_ids, wanted in ((None, [0, 3, 2]), ([7, 100], [7, 100, 9])):
        model = Model()
        translate_documents(texts, model, ROOM, Tally(), first_ids=first_ids)
        assert model.numbers == wanted


def test_a_sentence_is_cut_where_the_decoder_cuts_it():
    tally = Tally()
    texts = [[[10] * 11, [11] * 12], [[12] * 30]]
    translate_documents(texts, Model(), replace(ROOM, sentence=20), tally)
    assert (tally.sentences, tally.cut) == (3, 1)


def test_the_context_ends_with_the_sentence_before():
    model = Model()
    texts = [[[10] * 5, [11], [12] * 5, [13] * 9]]
    translate_documents(texts, model, ROOM, Tally())
    blocks = [(parts, len(context)) for parts, context in model.seen]
    assert blocks == [
        ([[10] * 5, [11]], 0),
        ([[11], [12] * 5], 1),  # 5 + 1 more pieces of [10] are too many for the context
        ([[13] * 9], 0),  # no room beside it
    ]
