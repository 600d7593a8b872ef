"""Embedded documents: a reader with the rules finds each marked word, and no one else does."""

import hashlib
import itertools
import json
import math
import re
from collections import Counter, defaultdict
from collections.abc import Sequence

import pytest

from transformer_jax.data.contrast import Item
from transformer_jax.data.sources.base import SPLITS, Pair, Split
from transformer_jax.data.sources.grammar_documents import GrammarDocuments
from transformer_jax.data.sources.grammar_documents.contrast import contrast_items, num_words
from transformer_jax.data.sources.grammar_documents.documents import Line
from transformer_jax.data.sources.grammar_documents.kinds import KINDS, MEANINGS, SYNONYMS
from transformer_jax.errors import UserError

KIND_NAMES = list(KINDS)
EN_DE = ("en", "de")
PRONOUN_OF_ARTICLE = {"der": "Er", "die": "Sie", "das": "Es"}
MEANING_OF_PLURAL = {noun.english_plural: noun.german_plural for noun in MEANINGS}
SYNONYM_NOUNS = {one.english for one, _ in SYNONYMS}


def read_document(pairs: Sequence[Pair]) -> dict[int, str]:
    """The number of each marked sentence -> the German word that the rules of `kinds.py` find.

    Reads English, and the German of earlier sentences alone.
    """
    found, topic, meanings, used = {}, "", {}, {}
    for number, (english, german) in enumerate(pairs):
        if english.startswith("Here is "):
            topic = re.fullmatch(r"Hier ist (\w+) \w+\.", german)[1]
        elif english.startswith("It ") and topic:
            found[number] = PRONOUN_OF_ARTICLE[topic]
        elif match := re.fullmatch(r"The (\w+) are (?:now )?(\w+)s\.", english):
            if match[2] + "s" in MEANING_OF_PLURAL:
                meanings[match[1]] = MEANING_OF_PLURAL[match[2] + "s"]
        elif (match := re.fullmatch(r"The (\w+) are \w+\.", english)) and match[1] in meanings:
            found[number] = meanings[match[1]]
        elif match := re.fullmatch(r"(?:I|We) see the (\w+)\.", english):
            if match[1] in SYNONYM_NOUNS:
                used[match[1]] = german.rstrip(".").split()[-1]
        elif (match := re.fullmatch(r"The (\w+) is \w+\.", english)) and match[1] in used:
            found[number] = used[match[1]]
    return found


def read_item(item: Item) -> str:
    """The word that the reader finds in the last sentence; it is what the right target has."""
    source, right, *wrong = (text.split(" <sep> ") for text in (item.source, *item.targets))
    assert all(text[:-1] == right[:-1] for text in wrong)
    found = read_document(list(zip(source, right, strict=True)))
    assert list(found) == [len(right) - 1]
    last = Line((source[-1], right[-1]), tuple(text[-1] for text in wrong))
    assert found[len(right) - 1] == marked_word(last)[0]
    return marked_word(last)[0]


def documents(kind: str, split: Split, count: int, **options) -> list[list[Line]]:
    source = GrammarDocuments(kinds=(kind,), **options)
    return [source.lines(split, number) for number in range(count)]


def marked_word(line: Line) -> tuple[str, set[str]]:
    """The German word in which the right sentence differs from the wrong ones, and theirs."""
    right, *wrong = (text.split() for text in (line.pair[1], *line.wrong))
    (place,) = [i for i, words in enumerate(zip(right, *wrong, strict=True)) if len(set(words)) > 1]
    others = {words[place] for words in wrong}
    assert len(others) == len(wrong) and right[place] not in others
    return right[place], others


def test_documents_and_items_stay_whatever_the_grammar_has_besides() -> None:
    source = GrammarDocuments(documents=100, held_out=20, most=60)
    items = [list(contrast_items(kind, 20, 40)) for kind in KIND_NAMES]
    items += [list(contrast_items(kind, 64, 40, facts=4, seed=1)) for kind in KIND_NAMES]
    found = [list(source.pairs(split, EN_DE)) for split in SPLITS], items
    digests = [hashlib.sha256(json.dumps(text, ensure_ascii=False).encode()) for text in found]
    known = ["0c55b4af6abb720d", "60c8b2f22d11f72b"]
    assert [digest.hexdigest()[:16] for digest in digests] == known


@pytest.mark.parametrize("split", ["train", "test"])
@pytest.mark.parametrize("kind", KIND_NAMES)
def test_the_rules_alone_decide_every_marked_word(kind: str, split: Split) -> None:
    for lines in documents(kind, split, 60, most=150):
        marked = {i: marked_word(line)[0] for i, line in enumerate(lines) if line.wrong}
        assert marked
        assert read_document([line.pair for line in lines]) == marked


def within_chance(right: int, count: int, chance: float) -> bool:
    """Whether the number is within 4.5 standard deviations: once in 150,000 it is not."""
    return abs(right - count * chance) <= 4.5 * math.sqrt(count * chance * (1 - chance))


@pytest.mark.parametrize("split", ["train", "test"])
@pytest.mark.parametrize("kind", KIND_NAMES)
def test_the_marked_sentence_alone_leaves_the_stated_chance(kind: str, split: Split) -> None:
    """Whatever is answered to an English sentence or a word of it, it is right by chance."""
    possible = round(1 / KINDS[kind].chance)
    answers: dict[str, Counter[str]] = defaultdict(Counter)
    for lines in documents(kind, split, 1500, most=12):
        for line in lines:
            if line.wrong:
                word, others = marked_word(line)
                assert len(others) + 1 == possible
                for known in {line.pair[0], *line.pair[0].split()}:
                    answers[known][word] += 1
    checked = 0
    for known, counts in answers.items():
        if len(counts) <= possible:  # an adjective alone leaves the answers to all nouns
            checked += 1
            for word, count in counts.items():
                total = sum(counts.values())
                assert within_chance(count, total, KINDS[kind].chance), (known, word, count, total)
    assert checked >= 8


@pytest.mark.parametrize("length", [num_words, lambda text: len(text) + 3], ids=["words", "chars"])
@pytest.mark.parametrize("distance", [30, 200, 1500, 8000])
@pytest.mark.parametrize("kind", KIND_NAMES)
def test_distances_are_what_they_say(kind: str, distance: int, length) -> None:
    for item in contrast_items(kind, distance, 3, length=length):
        source, right = item.source.split(" <sep> "), item.right.split(" <sep> ")
        assert len(source) == len(right)
        assert read_item(item)
        facts = KINDS[kind].usual
        deciding = right[facts - 1].split()[-1]
        assert length(deciding) + sum(map(length, right[facts:-1])) == distance
        assert item.category == f"{kind}/{distance}"


@pytest.mark.parametrize(
    ("kind", "distance", "options", "message"),
    [
        ("gender", 64, {}, "kind=gender: use agreement, recall, consistency, order"),
        ("recall", 64, {"facts": 65}, "facts=65: recall has 1 to 64"),
        ("consistency", 64, {"facts": 9}, "facts=9: consistency has 1 to 8"),
        ("agreement", 0, {}, "distance=0: the deciding word alone has a length of 1"),
    ],
)
def test_what_cannot_be_made_is_refused(kind, distance, options, message) -> None:
    with pytest.raises(UserError, match=message):
        next(contrast_items(kind, distance, 1, **options))


@pytest.mark.parametrize("kind", KIND_NAMES)
def test_no_marked_sentence_and_no_document_is_in_two_splits(kind: str) -> None:
    marked: dict[Split, set[str]] = {}
    whole: dict[Split, set[tuple[Pair, ...]]] = {}
    for split in SPLITS:
        made = documents(kind, split, 1500, most=8)
        marked[split] = {line.pair[0] for lines in made for line in lines if line.wrong}
        whole[split] = {tuple(line.pair for line in lines) for lines in made}
    for one, other in itertools.combinations(SPLITS, 2):
        if kind == "agreement":  # "It is new." names no noun: noun and adjective are disjoint
            continue
        assert not marked[one] & marked[other]
        assert not whole[one] & whole[other]


def test_the_options_change_the_text_and_the_fingerprint() -> None:
    small = {"documents": 20, "most": 10}
    kinds = [{}, {"seed": 1}, {"kinds": ("order",)}, {"least": 5}, {"definitions": (2,)}]
    sources = [GrammarDocuments(**(small | options)) for options in kinds]
    texts = {tuple(source.pairs("train", EN_DE)) for source in sources}
    prints = {source.fingerprint("train", EN_DE) for source in sources}
    assert len(texts) == len(prints) == len(kinds)


def test_wrong_options_are_one_line() -> None:
    with pytest.raises(UserError, match=r"least=9, most=5.*cannot be longer"):
        next(GrammarDocuments(least=9, most=5).pairs("train", EN_DE))
    with pytest.raises(UserError, match="at least one of kinds"):
        next(GrammarDocuments(kinds=()).pairs("train", EN_DE))
    with pytest.raises(UserError, match="English and German, not en -> fr"):
        next(GrammarDocuments().pairs("train", ("en", "fr")))
