"""Embedded English-German documents in which known words depend on sentences far before them."""

from transformer_jax.data.sources.grammar_documents.documents import (
    GrammarDocuments as GrammarDocuments,
)
