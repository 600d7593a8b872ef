"""What each filter promises, on every registered one, and where each draws the line."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.data.listed import write
from tests.metrics.folders import metricx_folder
from tests.oracles import need
from transformer_jax.data.config import Corpus, DataConfig, TokenizerConfig
from transformer_jax.data.filters.base import Filter
from transformer_jax.data.filters.duplicates import Duplicates, NearDuplicates
from transformer_jax.data.filters.identical import Identical
from transformer_jax.data.filters.language import Language
from transformer_jax.data.filters.lengths import LengthRatio
from transformer_jax.data.filters.quality import Quality
from transformer_jax.data.filters.registry import FILTERS
from transformer_jax.data.filters.review import Review, pairs_used
from transformer_jax.data.filters.script import Script
from transformer_jax.data.ids import ids_of_text
from transformer_jax.data.sources.base import Pair
from transformer_jax.data.sources.files import Files
from transformer_jax.data.splits import fingerprint, read_pairs, resolve
from transformer_jax.data.tokenizer_training import train_tokenizers
from transformer_jax.settings.variants import kind_of

EN_DE = ("en", "de")
GOOD: list[Pair] = [
    ("A man walks his dog in the park today.", "Ein Mann geht heute mit seinem Hund in den Park."),
    ("Two children are playing with a ball.", "Zwei Kinder spielen auf der Wiese mit einem Ball."),
    ("It is 5 o'clock.", "Es ist fünf Uhr."),
    ("42", "42."),
    ("Hm", "Hm!"),
]
BAD: dict[str, list[Pair]] = {
    "duplicates": [GOOD[0]],
    "near_duplicates": [("two children are  playing with a ball", GOOD[1][1].upper())],
    "length_ratio": [("", ""), ("No.", "Das ist ein viel zu langer Satz für so wenig."), ("x", "")],
    "identical": [("Homepage of the city", " Homepage of the city "), ("", "")],
    "script": [("A man walks.", "Мужчина идёт."), ("男人走路。", "Ein Mann geht.")],
    "quality": [("ein Buch", "Привет мир"), ("x", "Nein, nein, nein.")],
    "language": [
        ("A man walks his dog in the park.", "Un homme promène son chien dans le parc ce matin."),
        ("Ein Mann geht heute mit seinem Hund spazieren.", "Ein Mann geht mit seinem Hund."),
    ],
}


def judged(each: Filter, pairs: list[Pair], *, part: int = 1000) -> list[bool]:
    parts = [pairs[i : i + part] for i in range(0, len(pairs), part)]
    marks = [each.marks(some, EN_DE) for some in parts]
    assert [mark.shape for mark in marks] == [(len(some),) for some in parts]
    bad = each.bad(np.concatenate(marks))
    assert bad.dtype == bool
    return list(bad.tolist())


@pytest.fixture(scope="module")
def metric(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a random metric, for which the good pairs are better than the bad ones."""
    return metricx_folder(tmp_path_factory.mktemp("metric"))


@pytest.fixture(params=FILTERS)
def each(request: pytest.FixtureRequest, metric: Path) -> Filter:
    if request.param == "language":
        need("py3langid")
    needed: dict[str, Any] = {"quality": {"model": str(metric), "at_most": 0.9}}
    return FILTERS[request.param](**needed.get(request.param, {}))


def test_it_finds_what_is_bad_and_nothing_else(each: Filter) -> None:
    bad = BAD[kind_of(each, FILTERS)]
    assert judged(each, [*GOOD, *bad]) == [False] * len(GOOD) + [True] * len(bad)


def test_parts_change_nothing(each: Filter) -> None:
    pairs = [*GOOD, *(pair for pairs in BAD.values() for pair in pairs), *GOOD]
    whole = judged(each, pairs)
    assert all(judged(each, pairs, part=part) == whole for part in (1, 3))


@pytest.mark.parametrize(
    "words",
    [
        ("दिन", "दाना", "दान"),  # day, grain, gift
        ("ปู", "ปี", "ป่า"),  # crab, year, forest
        ("كَتَبَ", "كُتِبَ"),  # he wrote, it was written
        ("pe\u0301che", "pe\u0301che\u0301"),
    ],
)
def test_words_that_differ_in_marks_are_no_near_duplicates(words: tuple[str, ...]) -> None:
    pairs = [(f"{word}{end}", "x") for end in ("", " 12!") for word in words]
    marks = NearDuplicates().marks(pairs, ("hi", "en"))
    expected = [False] * len(words) + [True] * len(words)
    assert NearDuplicates().bad(marks).tolist() == expected


@pytest.mark.parametrize(
    ("each", "good", "bad"),
    [
        (Duplicates(), [("ab", "c"), ("a", "bc"), ("A", "bc"), ("bc", "a")], [("a", "bc")]),
        (
            NearDuplicates(),
            [("Dog 5", "Straße"), ("Dog", "Straßen"), ("犬", "x")],
            [("_dog… 7", "STRASSE!"), ("dog", "Straßen"), ("犬1", "X")],
        ),
        (
            LengthRatio(most=2.0),
            [("a" * 10, "b" * 30), ("a" * 30, "b" * 10), ("a", " b ")],
            [("a" * 10, "b" * 31), ("a" * 31, "b" * 10), ("a", " "), (" a", "b" * 13)],
        ),
        (Identical(), [("a", "A"), ("a b", "a  b")], [(" a\t", "a"), ("", " ")]),
        (Script(), [("aя", "犬b"), ("5", "…")], [("aяя", "b"), ("a", "犬 b я"), ("犬", "")]),
    ],
    ids=lambda value: type(value).__name__,
)
def test_where_it_draws_the_line(each: Filter, good: list[Pair], bad: list[Pair]) -> None:
    expected = [False] * len(good) + [True] * len(bad)
    assert judged(each, [*good, *bad], part=2) == expected


def test_scripts_that_a_language_may_have() -> None:
    russian, japanese = ("Мужчина идёт.", "A man walks."), ("男の人が歩く。", "A man walks.")
    assert Script().marks([russian, japanese], ("ru", "en")).tolist() == [False, True]
    assert Script().marks([russian, japanese], ("ja", "en")).tolist() == [True, False]
    every = Script(least=1)  # also lengthened and repeated letters, and those of another width
    assert every.marks([("サーバー", "ﾊﾟｰﾄ"), ("人々", "Ａ")], ("ja", "ja")).tolist() == [
        False,
        True,
    ]
    assert every.marks([("人々", "Ａ b"), ("人々", "ー")], ("zh", "en")).tolist() == [False, True]
    assert every.marks([("ß é", "ª º × ¼"), ("a", "aµ")], EN_DE).tolist() == [False, True]
    assert Script().marks([russian, japanese], ("sr", "tlh")).tolist() == [False, False]
    assert Script().marks([("123 …", "!"), ("", "")], EN_DE).tolist() == [False, False]


def test_short_sentences_and_unknown_languages_are_not_judged() -> None:
    need("py3langid")
    french = ("Un homme promène son chien dans le parc ce matin.",) * 2
    assert Language().marks([french], ("fr", "tlh")).tolist() == [False]
    assert Language().marks([french], ("en", "fr")).tolist() == [True]
    assert Language(shortest=80).marks([french], ("en", "fr")).tolist() == [False]


@pytest.fixture
def data(tmp_path: Path) -> DataConfig:
    """Ten good pairs, then what the filters find."""
    source, target = GOOD[0]
    good = [(f"{source} {letter}", target) for letter in "abcdefghij"]
    pairs = [*good, good[3], good[4], ("same", "same"), ("дом", "ein Haus"), *GOOD[1:3]]
    source = write(tmp_path, pairs)
    return resolve(DataConfig(source, validation_from_train=2, cache_dir=str(tmp_path / "cache")))


def test_nothing_is_left_out_by_default_but_it_is_counted(data: DataConfig, logged: Any) -> None:
    assert list(pairs_used(data)) == list(read_pairs(data, "train"))
    (line,) = logged()
    assert line == (
        "1:en-de: 14 pairs; filters: 2 duplicates (14.29%) kept, 2 near_duplicates (14.29%) kept, "
        "1 identical (7.14%) kept, 1 script (7.14%) kept"
    )


def test_what_is_chosen_is_left_out_and_reported(data: DataConfig, logged: Any) -> None:
    pairs = list(read_pairs(data, "train"))
    chosen = replace(data, filters=(Script(), Duplicates()))
    used = list(pairs_used(chosen))
    assert used == [pair for i, pair in enumerate(pairs) if i not in (10, 11, 13)]
    tokenizers = train_tokenizers(TokenizerConfig(vocab_size=290), used)
    ids = ids_of_text(chosen, tokenizers)
    assert ids.sizes == (11,)
    assert [tokenizers.source.decode(ids.source[i]) for i in (9, 10)] == [pairs[9][0], pairs[12][0]]
    assert logged()[-1] == (
        "1:en-de: 14 pairs, 11 of them used; filters: 1 script (7.14%) left out, "
        "2 duplicates (14.29%) left out, 2 near_duplicates (14.29%) kept, 1 identical (7.14%) kept"
    )
    assert list(read_pairs(chosen, "validation")) == list(read_pairs(data, "validation"))
    kinds = [data, chosen, replace(data, filters=(Script(least=0.9), Duplicates()))]
    assert len({fingerprint(each, "train") for each in kinds}) == 3
    # A run with a cache of the ids reports it too.
    ids_of_text(chosen, tokenizers)
    assert "11 of them used" in logged()[0]


def test_a_metric_counts_by_content_whatever_its_folder(data: DataConfig, tmp_path: Path) -> None:
    def key(content: str, name: str) -> str:
        (tmp_path / name / "more").mkdir(parents=True, exist_ok=True)
        (tmp_path / name / "more" / "weights").write_text(content)
        filters = (Quality(str(tmp_path / name)),)
        return fingerprint(replace(data, filters=filters), "train")

    first = key("one", "here")
    assert key("one", "there") == first
    assert key("two", "here") != first


def test_each_corpus_is_judged_by_itself(data: DataConfig, logged: Any) -> None:
    corpora = (Corpus(data.source), Corpus(data.source, reverse=True))
    both = replace(data, source=Files(), corpora=corpora, filters=(Duplicates(),))
    assert len(list(pairs_used(resolve(both)))) == 24
    assert [line.partition(";")[0] for line in logged()] == [
        "1:en-de: 14 pairs, 12 of them used",
        "2:de-en: 14 pairs, 12 of them used",
    ]


def test_an_empty_text_has_nothing_to_judge() -> None:
    review = Review((Duplicates(),), EN_DE)
    assert len(review.kept("1:en-de", [])[0]) == 0
