"""docs/adding_a_data_source.md, followed in a copy of the repository."""

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


def test_the_page_of_options_knows_it(tree):
    assert "### tmx" in options_of(PAGE, tree)
