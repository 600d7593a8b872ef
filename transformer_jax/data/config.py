"""What to train on, how to cut it into pieces, and how to batch it."""

from dataclasses import dataclass
from typing import Annotated, Literal, NoReturn

from pydantic import Field, NonNegativeInt, PositiveFloat, PositiveInt

from transformer_jax.config_types import Rate
from transformer_jax.data.sources.base import Languages, Source
from transformer_jax.data.sources.files import Files
from transformer_jax.data.sources.registry import SOURCES
from transformer_jax.errors import UserError
from transformer_jax.variants import OneOf

Int32 = Annotated[PositiveInt, Field(lt=2**31)]  # all that SentencePiece reads


@dataclass(frozen=True)
class DataConfig:
    """A parallel corpus and the direction to translate in."""

    source: Annotated[Source, OneOf(SOURCES)] = Files()
    source_language: str | None = None  #: translate from; none = the file ending (train.en)
    target_language: str | None = None  #: translate into; none = the file ending (train.de)
    validation_from_train: PositiveInt | None = None  #: pairs to hold out if there is no other set
    terminology: str | None = None  #: lines of source TAB target term to annotate in training text
    terminology_share: Annotated[float, Field(gt=0, le=1)] = 0.1  #: of the training pairs
    cache_dir: str | None = None  #: for the ids; none = <user cache>/transformer_jax/ids

    @property
    def languages(self) -> Languages:
        """The languages to translate from and into, as set here or as the source tells them.

        Raises:
            UserError: a language is neither set nor known to the source.
        """
        known = self.source.languages
        return (
            self.source_language or known[0] or self._unknown("source_language"),
            self.target_language or known[1] or self._unknown("target_language"),
        )

    def _unknown(self, key: str) -> NoReturn:
        raise UserError(
            f"data.{key} is not set, and the source does not tell it: name the language, such as "
            f"data.{key}=en"
        )


@dataclass(frozen=True)
class TokenizerConfig:
    """SentencePiece: trained on the training text, or a given model."""

    kind: Literal["unigram", "bpe"] = "unigram"
    vocab_size: Int32 | None = None  #: none = 8000, or as many as a given model has
    joint: bool = True  #: one model for both languages (allows three-way tied embeddings)
    byte_fallback: bool = True
    character_coverage: Annotated[float, Field(gt=0, le=1)] = 1.0
    source_model: str | None = None  #: path of a given SentencePiece model (with joint, for both)
    target_model: str | None = None
    max_training_sentences: PositiveInt = 2_000_000
    sampling_alpha: PositiveFloat | None = None  #: samples segmentations (data/segmentation.py)

    @property
    def trained_vocab_size(self) -> int:
        """Pieces of a model that is trained."""
        return self.vocab_size or 8000


@dataclass(frozen=True)
class BatchConfig:
    """Length-bucketed batches under a budget of tokens."""

    tokens: PositiveInt = 4096  #: at most this many target slots (and source slots) in a batch
    max_length: PositiveInt = 128  #: in pieces, EOS included; longer pairs are skipped and counted
    num_buckets: PositiveInt = 16  #: at most this many static shapes, each compiled once
    max_padding: Rate = 0.1  #: take as few shapes as keep the share of padding below this
    row_multiple: PositiveInt | None = None  #: of a batch's rows; none = as the devices need
    length_multiple: PositiveInt = 1  #: of the shapes' lengths; 8 or more suits accelerators
    seed: NonNegativeInt = 0
