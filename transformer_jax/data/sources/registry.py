"""The sources of parallel text by name, as in `--config.data.source=grammar`."""

from transformer_jax.data.sources.base import Source
from transformer_jax.data.sources.files import Files
from transformer_jax.data.sources.grammar import Grammar
from transformer_jax.data.sources.grammar_documents import GrammarDocuments
from transformer_jax.data.sources.huggingface import HuggingFaceSet
from transformer_jax.data.sources.opus import Opus
from transformer_jax.data.sources.prepared import Prepared
from transformer_jax.data.sources.tfds import Tfds
from transformer_jax.settings.variants import Family

SOURCES: Family[Source] = Family(
    Source,
    files=Files,
    tfds=Tfds,
    huggingface=HuggingFaceSet,
    opus=Opus,
    grammar=Grammar,
    grammar_documents=GrammarDocuments,
    prepared=Prepared,
)
