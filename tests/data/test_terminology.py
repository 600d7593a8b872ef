"""Annotated terms, against a search by regular expressions, and in a training text."""

import re
from dataclasses import replace

import numpy as np
import pytest

from transformer_jax.data.config import DataConfig
from transformer_jax.data.sources.files import Files
from transformer_jax.data.terminology import Terminology
from transformer_jax.data.text import TrainingText, check_splits, fingerprint, read_pairs, resolve
from transformer_jax.errors import UserError

TERMS = [("red car", "Rotwagen"), ("car", "Wagen"), ("car", "Auto"), ("U.S.", "USA"), ("U", "Uni")]


@pytest.mark.parametrize(
    ("source", "annotated"),
    [
        ("the car stops", "the car ⟦ Wagen ⟧ stops"),
        ("A red car.", "A red car ⟦ Rotwagen ⟧."),
        ("a car, a red car", "a car ⟦ Wagen ⟧, a red car ⟦ Rotwagen ⟧"),
        ("the cars of Oscar", "the cars of Oscar"),
        ("Car", "Car"),
        ("in the U.S. army", "in the U.S. ⟦ USA ⟧ army"),
        ("", ""),
    ],
)
def test_terms_are_found_as_whole_words_the_longest_first(source, annotated):
    assert Terminology(TERMS).annotate(source) == annotated
    assert Terminology([]).annotate(source) == source


def test_the_search_equals_a_regular_expression():
    rng, words = np.random.default_rng(0), ["a", "b", "c", "-", "d"]
    terms = {" ".join(rng.choice(words, size=rng.integers(1, 4))) for _ in range(12)}
    ordered = sorted(terms, key=len, reverse=True)
    pattern = re.compile("|".join(rf"(?<!\w){re.escape(term)}(?!\w)" for term in ordered))
    terminology = Terminology((term, term.upper()) for term in terms)
    for _ in range(300):
        text = " ".join(rng.choice(words, size=rng.integers(0, 12)))
        expected = pattern.sub(lambda match: f"{match[0]} ⟦ {match[0].upper()} ⟧", text)
        assert terminology.annotate(text) == expected


def test_training_pairs_are_annotated_with_what_the_target_has():
    terminology = Terminology(TERMS)
    for target, annotated in [
        ("das Auto hält", "the car ⟦ Auto ⟧ stops"),
        ("der Wagen und das Auto", "the car ⟦ Wagen ⟧ stops"),
        ("die Wagenburg", "the car stops"),
        ("der KleinWagen", "the car stops"),
    ]:
        pair = terminology.annotate_training(("the car stops", target), share=1.0)
        assert pair == (annotated, target)
    pairs = [(f"the car {i}", "Wagen") for i in range(2000)]
    chosen = {s for s, t in pairs if terminology.annotate_training((s, t), 0.3) != (s, t)}
    assert len(chosen) / 2000 == pytest.approx(0.3, abs=0.04)
    # By their text alone, so a larger share contains a smaller one.
    more = {s for s, t in pairs if terminology.annotate_training((s, t), 0.4) != (s, t)}
    assert chosen < more


def test_honoured_terms_are_counted_once_a_sentence():
    terminology = Terminology(TERMS)
    assert terminology.honoured("a car, the car and the U.S.", "ein Wagen, ein Wagen") == (1, 2)
    assert terminology.honoured("a car", "ein Auto") == (0, 1)  # the first translation is asked for
    assert terminology.honoured("a bus", "Wagen") == (0, 0)


@pytest.fixture
def data(tmp_path) -> DataConfig:
    for name, line in {"train.en": "the car {}", "train.de": "der Wagen {}"}.items():
        (tmp_path / name).write_text("".join(line.format(i) + "\n" for i in range(20)))
    (tmp_path / "terms.tsv").write_text("car\tWagen\n")
    return DataConfig(
        source=Files(
            train_source=(str(tmp_path / "train.en"),), train_target=(str(tmp_path / "train.de"),)
        ),
        validation_from_train=5,
        terminology=str(tmp_path / "terms.tsv"),
        terminology_share=1.0,
        cache_dir=str(tmp_path / "cache"),
    )


def test_training_text_is_annotated_and_validation_is_not(data, tmp_path):
    expected = [(f"the car ⟦ Wagen ⟧ {i}", f"der Wagen {i}") for i in range(15)]
    held_out = [(f"the car {i}", f"der Wagen {i}") for i in range(15, 20)]
    assert list(read_pairs(data, "train")) == expected
    assert list(read_pairs(data, "validation")) == held_out
    with TrainingText(data) as text:
        assert list(text) == expected
        assert text.validation(9) == held_out
    assert list(read_pairs(replace(data, validation_from_train=None), "train"))[:15] == expected


def test_the_fingerprint_follows_the_terms(data, tmp_path):
    keys = [
        fingerprint(each, "train")
        for each in (data, replace(data, terminology=None), replace(data, terminology_share=0.5))
    ]
    (tmp_path / "terms.tsv").write_text("car\tAuto\n")
    assert len({*keys, fingerprint(data, "train")}) == 4
    assert fingerprint(data, "validation") == fingerprint(
        replace(data, terminology=None), "validation"
    )
    relative = replace(data, terminology="terms.tsv")
    assert resolve(relative).terminology != "terms.tsv"


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("car\tWagen\nbus\n", "terms.tsv:2: expected source TAB target, got 0 tabs"),
        ("car\tWagen\nbus\t \n", "terms.tsv:2: expected source term TAB target term"),
        ("", "the file is empty"),
        (None, "terms.tsv: cannot be read"),
    ],
)
def test_a_wrong_file_is_named_before_training(data, tmp_path, content, message):
    (tmp_path / "terms.tsv").unlink()
    if content is not None:
        (tmp_path / "terms.tsv").write_text(content)
    with pytest.raises(UserError, match=message):
        check_splits(data)
