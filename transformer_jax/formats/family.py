"""What a family of published models gives: a config, a table of its tensors, tokenizers."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

from transformer_jax.data.mapped_tokenizer import MappedTokenizer, Vocabulary, mapped_tokenizer
from transformer_jax.data.tokenizer_pair import Tokenizers
from transformer_jax.decoding.base import Method
from transformer_jax.decoding.beam import Beam
from transformer_jax.decoding.greedy import Greedy
from transformer_jax.models.config import ModelConfig
from transformer_jax.weights.layout import ModelFolder
from transformer_jax.weights.settings import Settings
from transformer_jax.weights.tables import Table


class Languages(NamedTuple):
    """The languages to translate from and into, as the family spells them; None: not said."""

    source: str | None = None
    target: str | None = None

    def or_of(self, settings: Settings, *keys: str) -> "Languages":
        """These; for one that is not said, what a file has under its key."""
        pairs = zip(self, keys, strict=True)
        return Languages(*(own or settings.get(key, str, None) for own, key in pairs))


@dataclass(frozen=True)
class Published:
    """A model folder in our terms."""

    model: ModelConfig
    table: Table
    tokenizers: Tokenizers
    languages: Languages


Family = Callable[[ModelFolder, Languages], Published]


def make_tokenizers(
    source: tuple[bytes, Vocabulary], target: tuple[bytes, Vocabulary]
) -> Tokenizers:
    """The tokenizers of a SentencePiece model and a vocabulary for each side."""
    first, second = (
        MappedTokenizer(mapped_tokenizer(model, vocabulary), f"the {side} tokenizer")
        for side, (model, vocabulary) in (("source", source), ("target", target))
    )
    return Tokenizers(first, first if first.model == second.model else second)


def search(generation: Settings) -> Method:
    """The search that the folder recommends."""
    beams = generation.number("num_beams", 1)
    if beams == 1:
        return Greedy()
    penalty = generation.get("length_penalty", float, 1.0)
    patience = 1.0 if generation.get("early_stopping", object, False) is True else None
    return Beam(
        beam_size=beams, length_penalty=penalty, length_penalty_form="power", patience=patience
    )
