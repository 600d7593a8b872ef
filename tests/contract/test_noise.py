"""What each kind of noise promises, on every registered one, and where it is applied."""

import re
from dataclasses import replace
from pathlib import Path

import pytest

from tests.data.listed import write
from transformer_jax.data.config import Corpus, DataConfig
from transformer_jax.data.draws import Draws, seed_of
from transformer_jax.data.noise.numbers import Numbers
from transformer_jax.data.noise.registry import NOISES
from transformer_jax.data.noise.typos import Typos
from transformer_jax.data.sources.base import Pair
from transformer_jax.data.sources.files import Files
from transformer_jax.data.splits import directions_with, fingerprint, read_pairs, resolve
from transformer_jax.errors import UserError

PAIRS: list[Pair] = [
    ("The man's dog saw 12 cats in 1998.", "Der Hund sah 1998 in der Straße 12 Katzen!"),
    ("it cost 4 euros", "es kostete 4 Euro"),
    ("A small house.", "Ein kleines Haus"),
    ("…", "…"),
    ("", ""),
    ("a", "ein"),
]
EXPECTED: dict[str, list[Pair]] = {
    "upper_case": [
        ("THE MAN'S DOG SAW 12 CATS IN 1998.", "DER HUND SAH 1998 IN DER STRASSE 12 KATZEN!"),
        ("IT COST 4 EUROS", "ES KOSTETE 4 EURO"),
    ],
    "title_case": [
        ("The Man's Dog Saw 12 Cats In 1998.", "Der Hund Sah 1998 In Der Straße 12 Katzen!"),
        ("It Cost 4 Euros", "Es Kostete 4 Euro"),
    ],
    "no_final_mark": [
        ("The man's dog saw 12 cats in 1998", "Der Hund sah 1998 in der Straße 12 Katzen"),
        *PAIRS[1:],
    ],
}


@pytest.mark.parametrize("name", EXPECTED)
def test_what_is_not_random(name: str) -> None:
    made = [NOISES[name]()(pair, Draws(seed_of("any"))) for pair in PAIRS]
    assert made[: len(EXPECTED[name])] == EXPECTED[name]


@pytest.mark.parametrize("name", NOISES)
def test_the_same_key_gives_the_same_text(name: str) -> None:
    for number, pair in enumerate(PAIRS):
        one, other = (NOISES[name]()(pair, Draws(seed_of(str(number)))) for _ in range(2))
        assert one == other
        assert [bool(text) for text in one] == [bool(text) for text in pair]
        assert not any("\n" in text for text in one)


def test_typos_are_in_as_many_words_as_asked_for() -> None:
    words = ["house", "no", "garden", "windows"] * 500
    source, target = Typos(share=0.4)((" ".join(words), "Haus"), Draws(seed_of("a")))
    changed = [new != old for new, old in zip(source.split(" "), words, strict=True)]
    assert target == "Haus"
    assert not any(changed[1::4])
    # A pair of equal letters that is exchanged is no change; no word here has one.
    assert 0.36 < sum(changed) / 1500 < 0.44
    lengths = {len(new) - len(old) for new, old in zip(source.split(" "), words, strict=True)}
    assert lengths == {-1, 0, 1}


def test_numbers_change_alike_on_both_sides() -> None:
    seen = set()
    for key in range(50):
        source, target = Numbers()(PAIRS[0], Draws(seed_of(str(key))))
        found = [
            [w.strip(".!") for w in text.split() if w[0].isdigit()] for text in (source, target)
        ]
        assert found[0] == found[1][::-1]
        assert [len(number) for number in found[0]] == [2, 4]
        seen.add(tuple(found[0]))
    assert len(seen) > 45
    assert Numbers()(PAIRS[1], Draws(seed_of("a"))) == PAIRS[1]
    assert Numbers()(("in 1999", "2000"), Draws(seed_of("a"))) == ("in 1999", "2000")


@pytest.fixture
def files(tmp_path: Path) -> Files:
    return write(tmp_path, [(f"line {i} of many words.",) * 2 for i in range(40)])


def test_a_noisy_copy_is_trained_on_and_not_scored(files: Files) -> None:
    noisy = Corpus(files, ("en", "de"), noise=(Typos(),), weight=0.5)
    plain = Corpus(files, ("en", "de"))
    data = resolve(DataConfig(corpora=(noisy, plain), validation_from_train=5))
    train = list(read_pairs(data, "train"))
    clean = list(read_pairs(DataConfig(corpora=(plain,)), "train"))
    assert train[35:] == clean[:35]
    assert [target for _, target in train[:35]] == [target for _, target in clean[:35]]
    assert 5 < sum(a != b for a, b in zip(train[:35], clean[:35], strict=True)) <= 35
    assert list(read_pairs(data, "validation")) == clean[35:]
    assert data.names == ("1:en-de+typos", "2:en-de")
    alone = resolve(DataConfig(corpora=(noisy,), validation_from_train=5))
    assert directions_with(alone, "validation") == []
    with pytest.raises(UserError, match="a corpus with a tag or noise is only trained on"):
        list(read_pairs(alone, "validation"))


def test_the_fingerprint_knows_the_noise(files: Files) -> None:
    plain = Corpus(files, ("en", "de"))
    others = [(), (Typos(),), (Typos(share=0.2),), (Typos(), Typos()), (Numbers(),)]
    keys = {
        fingerprint(DataConfig(corpora=(replace(plain, noise=noise),)), "train") for noise in others
    }
    assert len(keys) == len(others)
    two = list(read_pairs(DataConfig(corpora=(replace(plain, noise=others[3]),)), "train"))
    once = list(read_pairs(DataConfig(corpora=(replace(plain, noise=others[1]),)), "train"))
    assert sum(a != b for a, b in zip(two, once, strict=True)) > 5  # other draws the second time


def test_noise_is_the_same_in_every_process() -> None:
    made, _ = Typos(share=0.9)(("several words with typos", ""), Draws(seed_of("7")))
    assert made == "severaal owrds wiith ypos"


def test_typos_leave_white_space_where_it_is() -> None:
    for key in range(50):
        source, _ = Typos(share=1.0)(("the\tdog\u00a0sleeps here", ""), Draws(seed_of(str(key))))
        assert re.sub(r"\S+", "x", source) == "x\tx\u00a0x x"
