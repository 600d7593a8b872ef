"""docs/adding_a_norm_or_feed_forward.md and docs/adding_a_position.md; see test_adding_pages.py."""

import pytest

from tests.followed_page import break_it, failures, run_all

READS = "docs/adding_*.md"
LAYERS = "layers.test_dynamic_tanh_and_maxout"
#: What the pages add -> the tests of its kind, the page's own, its call, and how many tests see it.
ADDED = {
    "dynamic_tanh": ("contract.test_layers", LAYERS, "layers.dynamic_tanh:Squash.__call__", 1),
    "maxout": ("contract.test_layers", LAYERS, "layers.maxout:MaxoutNetwork.__call__", 1),
    "kerple": (
        "contract.test_positions",
        "positions.test_kerple",
        "positions.kerple:LogarithmicBias.bias",
        2,
    ),
}


@pytest.mark.parametrize("name", ADDED)
def test_what_is_added_passes_the_tests_of_its_kind(tests_of, name):
    run_all(tests_of(ADDED[name][0], name), at_least=3)


@pytest.mark.parametrize("name", ADDED)
def test_the_tests_of_the_page_pass_and_can_fail(tree, tests_of, monkeypatch, name):
    _, own, place, fail = ADDED[name]
    run_all(tests_of(own))
    break_it(tree, monkeypatch, place, lambda call: lambda *args: 1.01 * call(*args))
    assert failures(tests_of(own)) == fail
