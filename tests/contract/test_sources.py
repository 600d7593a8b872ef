"""The suite on every registered source."""

from pathlib import Path

import pytest

from tests.contract.source_examples import EXAMPLES, WITH_DOCUMENTS
from tests.oracles import need
from transformer_jax.data.sources.registry import SOURCES
from transformer_jax.settings.variants import OneOf, to_text
from transformer_jax.testing.sources import CHECKS, TEXT

#: What the libraries of a source are called.
NEEDS = {"tfds": ["tensorflow_datasets"], "huggingface": ["datasets"], "opus": ["opustools"]}


def test_every_source_has_an_example() -> None:
    assert EXAMPLES.keys() == SOURCES.keys()


@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.__name__)
@pytest.mark.parametrize("name", SOURCES)
def test_source(name, check, tmp_path: Path) -> None:
    for module in NEEDS.get(name, ()):
        need(module)
    check(EXAMPLES[name], tmp_path)


@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.__name__)
@pytest.mark.parametrize("name", WITH_DOCUMENTS)
def test_source_with_documents(name, check, tmp_path: Path) -> None:
    check(WITH_DOCUMENTS[name], tmp_path)


@pytest.mark.parametrize("name", SOURCES)
def test_its_spellings_mean_the_same(name, tmp_path: Path) -> None:
    for module in NEEDS.get(name, ()):
        need(module)
    source, _ = EXAMPLES[name](tmp_path, TEXT)
    assert OneOf(SOURCES).parse(to_text(source, SOURCES)) == source
    assert OneOf(SOURCES).parse(OneOf(SOURCES).to_dict(source)) == source
