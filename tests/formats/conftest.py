"""Tokenizers, trained once for all tests of formats."""

import pytest


@pytest.fixture(scope="session")
def tokenizers():
    """A joint vocabulary of 350 pieces."""
    from tests.formats import exporter_suite

    return exporter_suite.tokenizers()


@pytest.fixture(scope="session")
def two(tokenizers):
    """Two vocabularies of different sizes and kinds."""
    from transformer_jax.data.config import TokenizerConfig
    from transformer_jax.data.sources.grammar.sentences import generate
    from transformer_jax.data.tokenizer_pair import Tokenizers
    from transformer_jax.data.tokenizer_training import train_tokenizer

    texts = [pair[1] for pair in generate(1, 200)]
    other = train_tokenizer(TokenizerConfig(vocab_size=330, kind="bpe"), texts, "target")
    return Tokenizers(tokenizers.source, other)
