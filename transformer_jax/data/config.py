"""What to train on, how to cut it into pieces, and how to batch it."""

from dataclasses import dataclass, replace
from typing import Annotated, Literal, NoReturn

from pydantic import Field, FiniteFloat, NonNegativeInt, PositiveFloat, PositiveInt

from transformer_jax.data.blocks import Blocks
from transformer_jax.data.filters.base import Filter
from transformer_jax.data.filters.registry import FILTERS
from transformer_jax.data.noise.base import Noise
from transformer_jax.data.noise.registry import NOISES
from transformer_jax.data.sources.base import Languages, Source
from transformer_jax.data.sources.files import Files
from transformer_jax.data.sources.registry import SOURCES
from transformer_jax.errors import UserError
from transformer_jax.settings.types import (
    MAY_CHANGE,
    SETTLED,
    USUAL,
    FileName,
    Positive,
    Rate,
    Strings,
)
from transformer_jax.settings.variants import ManyOf, OneOf, kind_of


@dataclass(frozen=True)
class Corpus:
    """One of several texts to train on, and how it is used.

    A corpus with a tag or noise is only trained on: its validation and test sets are not read.
    """

    source: Annotated[Source, OneOf(SOURCES)] = Files()  #: where the text is
    languages: Strings = ()
    #: codes of its two sides, such as en,de; empty = the endings of its files, or those of data
    reverse: bool = False  #: translate from its second side into its first
    weight: Positive = 1.0  #: how often a pair is seen while one of weight 1 is seen once
    tag: Annotated[str, Field(pattern=r"^(<[^\s<>]+>)?$")] = ""
    #: a piece that its source sentences begin with, such as <bt> for back-translated text
    noise: Annotated[tuple[Noise, ...], ManyOf(NOISES, least=0)] = ()
    #: how its pairs are changed, one after the other, such as typos

    @property
    def is_scored(self) -> bool:
        """Whether its validation and test sets are read."""
        return not self.tag and not self.noise

    @property
    def sides(self) -> Languages:
        """The languages of the two sides of its source, where `languages` names both."""
        first, second = self.languages
        return first, second

    @property
    def direction(self) -> Languages:
        """The languages to translate from and into, where `languages` names both."""
        return self.sides[::-1] if self.reverse else self.sides


def _kinds(noise: tuple[Noise, ...]) -> str:
    return "".join(f"+{kind_of(each, NOISES)}" for each in noise)


Int32 = Annotated[PositiveInt, Field(lt=2**31)]  # all that SentencePiece reads


@dataclass(frozen=True)
class DataConfig:
    """The parallel text, and the direction to translate in.

    The text is `source`, or several `corpora`. `source_language` and `target_language` are the
    direction that is used when none is given; by default that of the first corpus. With several
    target languages, each source begins with a tag such as `<2fr>`.
    """

    source: Annotated[Source, OneOf(SOURCES), MAY_CHANGE, USUAL] = Files()  #: where the text is
    source_language: str | None = None  #: translate from; none = the file ending (train.en)
    target_language: str | None = None  #: translate into; none = the file ending (train.de)
    corpora: Annotated[tuple[Corpus, ...], ManyOf({"corpus": Corpus}, least=0), MAY_CHANGE] = ()
    #: several texts, in place of source
    temperature: Annotated[FiniteFloat, Field(ge=1)] = 1.0
    #: T: a corpus of n pairs is seen in proportion to n ^ (1 / T), the largest once an epoch
    filters: Annotated[tuple[Filter, ...], ManyOf(FILTERS, least=0), MAY_CHANGE, USUAL] = ()
    #: which training pairs to leave out; a new run also counts those of the other filters
    blocks: Annotated[tuple[Blocks, ...], ManyOf({"blocks": Blocks}, least=0)] = ()
    #: train on blocks of sentences of a document, such as blocks(tokens=512); none = on sentences
    validation_from_train: Annotated[PositiveInt, USUAL] | None = None
    #: pairs to hold out if there is no other set
    prepared: str | None = None
    #: folder that `transformer-jax prepare` made of a text, in place of source and corpora
    cache_dir: Annotated[FileName, MAY_CHANGE] | None = None
    #: for the ids; none = <user cache>/transformer_jax/ids

    @property
    def parts(self) -> tuple[Corpus, ...]:
        """The corpora with their languages; `source` alone is one of them.

        Raises:
            UserError: a language is neither set nor known to the source; or both `source` and
                `corpora` are given.
        """
        if not self.corpora:
            known = self.source.languages
            languages = (
                self.source_language or known[0] or self._unknown("source_language"),
                self.target_language or known[1] or self._unknown("target_language"),
            )
            return (Corpus(self.source, languages),)
        if self.source != Files():
            raise UserError("data.source and data.corpora are both given: give one of them")
        return tuple(self._named(number, corpus) for number, corpus in enumerate(self.corpora, 1))

    @property
    def languages(self) -> Languages:
        """The languages to translate from and into where no direction is named.

        Raises:
            UserError: as `parts`.
        """
        parts = self.parts
        if self.source_language and self.target_language:
            return self.source_language, self.target_language
        return parts[0].direction

    @property
    def directions(self) -> tuple[Languages, ...]:
        """The directions that are trained, each once, in the order of the corpora.

        Raises:
            UserError: as `parts`.
        """
        return tuple(dict.fromkeys(corpus.direction for corpus in self.parts))

    @property
    def names(self) -> tuple[str, ...]:
        """A short name of each corpus, such as `1:en-de` or `2:en-de<bt>`.

        Raises:
            UserError: as `parts`.
        """
        return tuple(
            f"{number}:{'-'.join(corpus.direction)}{corpus.tag}{_kinds(corpus.noise)}"
            for number, corpus in enumerate(self.parts, start=1)
        )

    def examples(self, language: str) -> list[str]:
        """The sentences of all sources in this language that anyone may be shown."""
        sources = [corpus.source for corpus in self.corpora] or [self.source]
        return [sentence for source in sources for sentence in source.examples(language)]

    def _named(self, number: int, corpus: Corpus) -> Corpus:
        languages = corpus.languages
        if not languages:
            known = corpus.source.languages
            both = known[0] or self.source_language, known[1] or self.target_language
            languages = tuple(code for code in both if code)
        if len(languages) != 2:
            raise UserError(
                f"data.corpora: corpus {number}: name its two languages, as in languages='en,de'"
            )
        return replace(corpus, languages=languages)

    def _unknown(self, key: str) -> NoReturn:
        raise UserError(
            f"data.{key} is not set, and the source does not tell it: name the language, such as "
            f"data.{key}=en"
        )


@dataclass(frozen=True)
class TokenizerConfig:
    """SentencePiece: trained on the training text, or a given model."""

    kind: Literal["unigram", "bpe"] = "unigram"  #: how a vocabulary is learned
    vocab_size: Annotated[Int32, SETTLED, USUAL] | None = None
    #: none = 8000, or as many as a given model has
    joint: bool = True  #: one model for both languages (allows three-way tied embeddings)
    byte_fallback: bool = True  #: spell a character that has no piece as its bytes
    character_coverage: Annotated[float, Field(gt=0, le=1)] = 1.0
    #: share of the characters of the text that get pieces of their own
    normalization: Literal["clean", "identity"] = "clean"
    #: clean = white space becomes spaces, invisible marks nothing (data/normalization.py)
    source_model: FileName | None = None
    #: path of a given SentencePiece model (with joint, for both)
    target_model: FileName | None = None  #: path of the target's model, if joint is false
    max_training_sentences: PositiveInt = 500_000
    #: drawn from a larger text; learning takes about 2 KB of memory for each
    sampling_alpha: PositiveFloat | None = None
    #: samples segmentations, if unigram (data/sampling.py)

    @property
    def trained_vocab_size(self) -> int:
        """Pieces of a model that is trained."""
        return self.vocab_size or 8000


#: `batch.tokens` for each device that shares the batch, where none is given.
TOKENS_PER_DEVICE = 4096


@dataclass(frozen=True)
class BatchConfig:
    """Length-bucketed batches under a budget of tokens."""

    tokens: Annotated[PositiveInt, SETTLED, USUAL] | None = None
    #: at most this many target slots (and source slots) in a batch; none = 4096 for each device
    max_length: PositiveInt = 128  #: in pieces, EOS included; longer pairs are skipped and counted
    num_buckets: PositiveInt = 16  #: at most this many static shapes, each compiled once
    max_padding: Rate = 0.1  #: take as few shapes as keep the share of padding below this
    row_multiple: Annotated[PositiveInt, SETTLED] | None = None
    #: of a batch's rows; none = as the devices need
    length_multiple: PositiveInt = 1  #: of the shapes' lengths; 8 or more suits accelerators
    seed: NonNegativeInt = 0  #: of the order of the pairs

    @property
    def budget(self) -> int:
        """`tokens`, or those of one device."""
        return self.tokens or TOKENS_PER_DEVICE
