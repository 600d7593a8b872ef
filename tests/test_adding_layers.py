"""docs/adding_a_norm_or_feed_forward.md and docs/adding_a_position.md; see test_adding_pages.py."""

import pytest

from tests.followed_page import run_all

READS = "docs/adding_*.md"
#: What the pages add -> the tests of its kind, and the page's own.
ADDED = {
    "dynamic_tanh": ("contract.test_layers", "layers.test_dynamic_tanh_and_maxout"),
    "maxout": ("contract.test_layers", "layers.test_dynamic_tanh_and_maxout"),
    "kerple": ("contract.test_positions", "positions.test_kerple"),
}


@pytest.mark.parametrize("name", ADDED)
def test_what_is_added_passes_the_tests_of_its_kind_and_of_the_page(tests_of, name):
    kind, own = ADDED[name]
    run_all(tests_of(kind, name), at_least=3)
    run_all(tests_of(own))
