"""The embedded corpus: unambiguous, held out, the same everywhere."""

import hashlib
import itertools
import json
from collections import defaultdict
from pathlib import Path

from transformer_jax.data.sources.grammar import sentences as grammar
from transformer_jax.data.sources.grammar.patterns import SHORT_PATTERNS
from transformer_jax.data.sources.grammar.shortest import SHORTEST_PATTERNS


def test_the_test_set_of_older_recipes_is_that_of_today() -> None:
    file = Path(__file__).parent / "quickstart_pairs.tsv"
    pairs = [tuple(line.split("\t")) for line in file.read_text(encoding="utf-8").splitlines()]
    assert pairs[:500] == grammar.split_pairs("test")
    assert len(pairs) == 1000 and all(len(english.split()) <= 5 for english, _ in pairs[500:])


def test_examples_are_sentences_that_no_model_was_trained_on() -> None:
    examples = [grammar.Grammar().examples(language) for language in ("en", "de")]
    assert list(zip(*examples, strict=True)) == grammar.split_pairs("validation")[:3]


def test_held_out_sentences_and_other_splits_are_not_in_the_training_text() -> None:
    text = grammar.split_pairs("train")
    assert not any(grammar.is_held_out(english) for english, _ in text)
    for side in (0, 1):
        others = {
            pair[side] for split in ("validation", "test") for pair in grammar.split_pairs(split)
        }
        assert not others & {pair[side] for pair in text}


def test_a_change_of_text_needs_a_new_version() -> None:
    # The same digest in every Python. If a sentence changed on purpose, raise grammar.VERSION:
    # It identifies the id caches of the old text.
    pairs = grammar.generate(0, sum(grammar.SPLIT_SIZES.values()))
    assert len(set(dict(pairs).values())) == len(pairs)  # no sentence comes twice
    text = json.dumps(pairs, ensure_ascii=False)
    digest = hashlib.sha256(text.encode()).hexdigest()[:16]
    train = json.dumps(grammar.split_pairs("train"), ensure_ascii=False)
    digest_of_train = hashlib.sha256(train.encode()).hexdigest()[:16]
    known = ("1.2.0", "896c6f7b7fbf463b", "308311e68206f7b9")
    assert (grammar.VERSION, digest, digest_of_train) == known


def test_translation_is_determined_in_both_directions() -> None:
    german_of, english_of = defaultdict(set), defaultdict(set)
    short = itertools.islice(grammar.sentences(3, SHORT_PATTERNS + SHORTEST_PATTERNS), 50_000)
    for english, german in itertools.chain(itertools.islice(grammar.sentences(3), 30_000), short):
        german_of[english].add(german)
        english_of[german].add(english)
    assert [e for e, translations in german_of.items() if len(translations) > 1] == []
    assert [g for g, translations in english_of.items() if len(translations) > 1] == []
