"""Words of pieces, and links between them."""

from itertools import product

import numpy as np
import pytest
from hypothesis import given, strategies as st

from transformer_jax.data.alignments import links_of, pharaoh, piece_links, words
from transformer_jax.data.config import TokenizerConfig
from transformer_jax.data.mapped_tokenizer import Tags, with_tags
from transformer_jax.data.sources.grammar.sentences import generate
from transformer_jax.data.tokenizer_pair import Tokenizers
from transformer_jax.data.tokenizer_training import train_tokenizers

# SentencePiece's own sign for a space is no character of a text; see `data/tokenizer.py`.
characters = st.characters(exclude_categories=["Cs"], exclude_characters="▁\0")


TEXTS = st.text(st.sampled_from(" \t\u00a0aeé中🙂") | characters, max_size=30)


@pytest.fixture(scope="module", params=["nmt_nfkc", "identity", "clean"])
def given_tokenizer(request):
    """Two that normalise, and one to which other spaces than U+0020 are unknown."""
    options = {"normalization": request.param, "byte_fallback": request.param == "clean"}
    return train_tokenizers(TokenizerConfig(vocab_size=400, **options), generate(3, 400)).source


@given(text=TEXTS | st.text(st.sampled_from(" \t\u00a0\u3000\u200b\u00adab½ﬁ…🙂"), max_size=12))
def test_words_are_those_of_the_text_whatever_its_tokenizer_makes_of_it(given_tokenizer, text):
    text = text.strip(" \t\n\r\v\f")
    ids = given_tokenizer.encode(text)
    found = words(given_tokenizer, text)
    assert found.shape == (len(text.encode().split()), len(ids))
    assert found.any(axis=0).all() or not text  # every piece is of a word
    of_ids = words(given_tokenizer, ids)
    assert len(of_ids) == len(given_tokenizer.decode(ids).encode().split())
    if given_tokenizer.decode(ids) == text:  # nothing was normalised
        np.testing.assert_array_equal(of_ids, found)
        parts = [given_tokenizer.decode(np.array(ids)[of_word]) for of_word in found]
        assert [part.encode().split() for part in parts] == [[w] for w in text.encode().split()]


def test_links_are_between_words_of_the_text(given_tokenizer):
    pair = "The old\u00a0red dog \u200b sleeps here", "The oldred dog sleeps here"
    tokenizers = Tokenizers(given_tokenizer, given_tokenizer)
    found = piece_links([(5, 4)], tokenizers, pair)
    own = len(given_tokenizer.encode("here"))
    lengths = [len(given_tokenizer.encode(text)) for text in pair]
    assert found.tolist() == list(map(list, product(*(range(n - own, n) for n in lengths))))


def test_a_language_token_has_no_part_in_a_word(given_tokenizer):
    tagged = with_tags(given_tokenizer, Tags(languages=("de",)))
    found = words(tagged, "<2de> The dog")
    assert [row.any() for row in found] == [False, True, True]
    assert not found[:, 0].any()
    assert (words(tagged, tagged.encode("<2de> The dog")) == found[1:]).all()


def test_each_target_word_has_the_source_word_that_its_pieces_use_most():
    looks_TS = np.array([[0.4, 0.3, 0.3], [0.2, 0.1, 0.7], [0.9, 0.1, 0.0]])
    sources_WS = np.array([[1, 0, 0], [0, 1, 1]], bool)
    targets_WT = np.array([[1, 1, 0], [0, 0, 1]], bool)
    links = links_of(looks_TS, sources_WS, targets_WT)
    assert links == [(1, 0), (0, 1)]
    assert pharaoh(links) == "1-0 0-1"
    assert links_of(looks_TS, sources_WS[:0], targets_WT) == []
    assert links_of(looks_TS, sources_WS, targets_WT[:0], every_source=True) == []
    looks_TS[2, 0] = 0.0
    assert links_of(looks_TS, sources_WS, targets_WT) == [(1, 0), (1, 1)]
    assert links_of(looks_TS, sources_WS, targets_WT, every_source=True) == [(1, 0), (1, 1), (0, 0)]


def test_a_word_without_pieces_has_no_link():
    """Such as one that the tokenizer leaves out, or that does not fit the model."""
    none = np.zeros(2, bool)
    sources_WS, targets_WT = np.array([none, [1, 1]], bool), np.array([[1, 1], none], bool)
    assert links_of(np.full((2, 2), 0.5), sources_WS, targets_WT, every_source=True) == [(1, 0)]
