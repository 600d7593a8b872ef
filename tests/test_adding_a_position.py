"""docs/adding_a_position.md, followed in a copy of the repository."""

import pytest

from tests.followed_page import copied, options_of

PAGE = "adding_a_position.md"


def test_the_suite_runs_over_the_scheme_of_the_page(tree):
    contract = copied(tree, "tests.contract.test_positions")
    suite = copied(tree, "transformer_jax.testing.positions")
    contract.test_scheme("kerple", suite.check_shift_invariance)
    contract.test_scheme("kerple", suite.check_widths)
    assert "kerple" in contract.AT_SCORES and "kerple" not in contract.EMBEDDING
    contract.test_in_a_mixer("kerple")
    assert contract.has_parameters(contract.POSITIONS["kerple"])
    contract.test_parameters("kerple")
    assert suite.order_matters(contract.POSITIONS["kerple"]())


@pytest.mark.parametrize("test", ["is_the_formula", "the_initial_rates_are_the_option"])
def test_the_tests_of_the_page(tree, test):
    getattr(copied(tree, "tests.positions.test_kerple"), f"test_{test}")()


def test_the_pages_of_mixers_and_options_know_it(tree):
    copied(tree, "tests.test_mixers_doc").test_hooks()
    written = options_of(PAGE, tree)
    assert "### kerple" in written and "| `initial` | `1.0` |" in written
