"""docs/adding_a_norm_or_feed_forward.md, followed in a copy of the repository."""

import pytest

from tests.followed_page import copied, options_of

PAGE = "adding_a_norm_or_feed_forward.md"


def test_the_suite_runs_over_the_layers_of_the_page(tree):
    contract = copied(tree, "tests.contract.test_layers")
    suite = copied(tree, "transformer_jax.testing.layers")
    assert "dynamic_tanh" in contract.NORMS and "maxout" in contract.FEED_FORWARDS
    for check in suite.EVERY_NORM:
        contract.test_norm("dynamic_tanh", check)
    for check in suite.EVERY_FEED_FORWARD:
        contract.test_feed_forward("maxout", check)


@pytest.mark.parametrize("name", ["dynamic_tanh", "maxout"])
def test_the_tests_of_the_page(tree, name):
    getattr(copied(tree, "tests.layers.test_dynamic_tanh_and_maxout"), f"test_{name}")()


def test_the_page_of_options_knows_them(tree):
    options_of(PAGE, tree)
