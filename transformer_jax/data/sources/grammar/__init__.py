"""The embedded German-English corpus: a source that needs no file and no download."""

from transformer_jax.data.sources.grammar.sentences import Grammar as Grammar
