"""Words of pieces, and links between them."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from transformer_jax.data.alignments import links_of, pharaoh, words
from transformer_jax.data.config import TokenizerConfig
from transformer_jax.data.mapped_tokenizer import Tags, with_tags
from transformer_jax.data.sources.grammar.sentences import generate
from transformer_jax.data.tokenizer_training import train_tokenizers


@pytest.fixture(scope="module")
def tokenizer():
    return train_tokenizers(TokenizerConfig(vocab_size=400), generate(3, 400)).source


# SentencePiece's own sign for a space is no character of a text; see `data/tokenizer.py`.
characters = st.characters(exclude_categories=["Cs"], exclude_characters="▁\0")


@settings(deadline=None)
@given(text=st.text(st.sampled_from(" \t\u00a0aeé中🙂") | characters, max_size=30))
def test_words_are_what_stands_between_spaces(tokenizer, text):
    ids = tokenizer.encode(text)
    found = words(tokenizer, ids)
    assert len(found) == len(text.encode().split())
    for word, of_word in zip(text.encode().split(), found, strict=True):
        part = tokenizer.decode(np.array(ids)[of_word]).encode()
        assert part.split() == [word]


def test_a_language_token_is_no_word(tokenizer):
    tagged = with_tags(tokenizer, Tags(languages=("de",)))
    found = words(tagged, tagged.encode("<2de> The dog"))
    assert len(found) == 2
    assert not found[:, 0].any()


def test_each_target_word_has_the_source_word_that_its_pieces_use_most():
    looks_TS = np.array([[0.4, 0.3, 0.3], [0.2, 0.1, 0.7], [0.9, 0.1, 0.0]])
    sources_WS = np.array([[1, 0, 0], [0, 1, 1]], bool)
    targets_WT = np.array([[1, 1, 0], [0, 0, 1]], bool)
    links = links_of(looks_TS, sources_WS, targets_WT)
    assert links == [(1, 0), (0, 1)]
    assert pharaoh(links) == "1-0 0-1"
    assert links_of(looks_TS, sources_WS[:0], targets_WT) == []
