"""docs/adding_a_data_source.md, followed in a copy of the repository."""

from pathlib import Path

import pytest

from tests.followed_page import copied, options_of
from transformer_jax.testing import sources as source_suite

PAGE = "adding_a_data_source.md"


@pytest.mark.parametrize("check", [check.__name__ for check in source_suite.CHECKS])
def test_the_suite_runs_over_the_source_of_the_page(tree, check, tmp_path):
    suite = copied(tree, "transformer_jax.testing.sources")
    copied(tree, "tests.contract.test_sources").test_source("tmx", getattr(suite, check), tmp_path)


def test_every_source_still_has_an_example(tree, tmp_path):
    tests = copied(tree, "tests.contract.test_sources")
    tests.test_every_source_has_an_example()
    tests.test_its_spellings_mean_the_same("tmx", tmp_path)


def test_the_tests_of_the_page(tree, tmp_path):
    tests = copied(tree, "tests.data.test_tmx")
    tests.test_units_without_both_languages_are_skipped(tmp_path)
    for text in ("", "<tmx><body><tu>", "no XML"):
        tests.test_a_damaged_file_is_named(tmp_path, text)


def test_the_tests_of_the_page_can_fail(tree, tmp_path, monkeypatch):
    monkeypatch.setattr(copied(tree, "transformer_jax.data.sources.tmx"), "_LANGUAGE", "lang")
    with pytest.raises(AssertionError):
        copied(tree, "tests.data.test_tmx").test_units_without_both_languages_are_skipped(tmp_path)


def test_a_run_reads_its_text_through_it(tree, tmp_path):
    """Hold-out, tokenizer and ids come without further code."""
    suite = copied(tree, "transformer_jax.testing.sources")
    source, text = copied(tree, "tests.contract.source_examples").tmx(
        tmp_path, {"train": suite.TEXT["train"]}
    )
    config = copied(tree, "transformer_jax.config")
    flags = {
        "data.source": "tmx",
        "data.source.train": str(Path(source.train)),
        "data.source_language": "en",
        "data.target_language": "de",
        "data.validation_from_train": "9",
        "data.cache_dir": str(tmp_path / "cache"),
        "tokenizer.vocab_size": "300",
    }
    changed = config.override(config.Config(), flags)
    assert changed.data.source == source
    assert config.from_json(config.to_json(changed), "config.json") == changed
    first_documents = copied(tree, "transformer_jax.data.splits").first_documents
    learn = copied(tree, "transformer_jax.data.tokenizer_training").tokenizers_of_text
    ids_of_text = copied(tree, "transformer_jax.data.ids").ids_of_text
    assert first_documents(changed.data, "validation", 100) == [text["train"][-9:]]
    corpus = ids_of_text(changed.data, learn(changed.tokenizer, changed.data))
    assert len(corpus) == len(text["train"]) - 9


def test_the_page_of_options_knows_it(tree):
    assert "### tmx" in options_of(PAGE, tree)
