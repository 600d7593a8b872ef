"""The links of the embedded corpus that `benchmarks/alignment_error.py` is sure of."""

import importlib.util
from pathlib import Path

import pytest


@pytest.fixture(scope="module")
def script():
    path = Path(__file__).parents[1] / "benchmarks" / "alignment_error.py"
    spec = importlib.util.spec_from_file_location("alignment_error", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_nouns_and_adjectives_that_are_there_once_are_sure(script):
    sure_links = script.sure_links
    # The German "hat" is no hat.
    assert sure_links(
        "The hat that Anna found is red.", "Der Hut, den Anna gefunden hat, ist rot."
    ) == [(1, 1), (3, 3), (6, 7)]
    # A word that is there twice may be the one or the other.
    assert sure_links("The dog sees a dog.", "Der Hund sieht einen Hund.") == []
    assert sure_links("Anna sees the dogs.", "Anna sieht die Katzen.") == [(0, 0)]
