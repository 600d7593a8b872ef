"""Texts are cut into sentences that fit, and nothing between them is lost."""

import pytest
from hypothesis import given, strategies as st

from transformer_jax.commands.text import split

TEXTS = st.text(st.sampled_from("ab.!? \t\n\r\x85\u2028漢。\xa0🙂") | st.characters(codec="utf-8"))


def cut(text, most=10**9, sentences=False, language="en"):
    return split(text, lambda part: len(part) <= most, language=language, sentences=sentences)


@given(TEXTS, st.integers(1, 12), st.booleans(), st.sampled_from(["en", "zh", "xx"]))
def test_the_parts_make_the_text(text, most, sentences, language):
    found = cut(text, most, sentences, language)
    assert found.filled(found.sentences) == text
    assert len(found.gaps) == len(found.sentences) + 1
    assert [each for document in found.documents() for each in document] == found.sentences
    for sentence in found.sentences:
        assert sentence == sentence.strip() != ""
        assert len(sentence) <= most
        assert len(sentence.splitlines()) == 1


@pytest.mark.parametrize(
    ("text", "options", "sentences"),
    [
        ("One. Two.\n\n  Three. ", {}, ["One. Two.", "Three."]),
        ("Mr. Smith sleeps. He dreams.", {"sentences": True}, ["Mr. Smith sleeps.", "He dreams."]),
        ("Mr. Smith sleeps. He dreams.", {"most": 20}, ["Mr. Smith sleeps.", "He dreams."]),
        ("aaa bbb ccc ddd", {"most": 8}, ["aaa bbb", "ccc ddd"]),  # near its middle
    ],
)
def test_a_line_is_cut_on_request_or_if_it_is_too_long(text, options, sentences):
    assert cut(text, **options).sentences == sentences


@pytest.mark.parametrize("line_break", ["\n", "\r\n", "\u2028"])
def test_a_blank_line_ends_a_document(line_break):
    text = "\n\nOne. Two.\n Three.\n \nFour.\n\n\nFive.\n\n".replace("\n", line_break)
    wanted = [["One.", "Two.", "Three."], ["Four."], ["Five."]]
    assert cut(text, sentences=True).documents() == wanted
    assert cut("  \n\n").documents() == []


@pytest.mark.parametrize("text", [" " * 200_000, "a" * 200_000, "\n" * 200_000, "a " * 100_000])
def test_long_runs_take_linear_time(text):
    """With quadratic time, this would take minutes."""
    found = cut(text, most=5000)
    assert found.filled(found.sentences) == text
