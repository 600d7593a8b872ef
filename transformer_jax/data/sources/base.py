"""What every source of parallel text answers; a source is one file and one line of the registry."""

from abc import ABC, abstractmethod
from collections.abc import Iterator
from typing import Literal, Self, get_args

from transformer_jax.errors import UserError
from transformer_jax.settings.file_names import absolute_fields

Split = Literal["train", "validation", "test"]
SPLITS: tuple[Split, ...] = get_args(Split)
Pair = tuple[str, str]  # source and target sentence
Languages = tuple[str, str]  # codes of the languages to translate from and into
#: What a source whose `has_documents` is true yields after the last pair of a document.
BOUNDARY: Pair = ("", "")
Numbered = tuple[int, Pair]  # the number of a pair's document, ascending; the pair


class Source(ABC):
    """Parallel text that a recipe names: `data=DataConfig(source=Files(...))`.

    A source is a frozen dataclass; its fields are the options. `transformer_jax/testing/sources.py`
    says what is expected from each method, and runs on every registered source.
    """

    @property
    def languages(self) -> tuple[str | None, str | None]:
        """The languages of the two sides where the source's own options tell them.

        Raises:
            UserError: the options name no training text.
        """
        return None, None

    @property
    def has_documents(self) -> bool:
        """Whether `pairs` tells where documents end.

        Each ends with `BOUNDARY`, which is no pair; several in a row are one. Without documents
        an empty pair is a pair as any other.
        """
        return False

    @property
    def alignments(self) -> tuple[str, ...]:
        """Files of word alignments with a line for each pair to train on; () = there are none.

        They go on one after the other, as the pairs do; see `data/alignments.py`.
        """
        return ()

    @abstractmethod
    def has(self, split: Split) -> bool:
        """Whether the split exists.

        Raises:
            UserError: the options name the split, and it cannot be read.
        """

    @abstractmethod
    def pairs(self, split: Split, languages: Languages) -> Iterator[Pair]:
        """Yields the sentence pairs, in the same order each time, without reading all at once.

        Raises:
            UserError: there is no such split (`missing`) or language, or the text is damaged.
        """

    @abstractmethod
    def fingerprint(self, split: Split, languages: Languages) -> str:
        """A key that changes exactly when what `pairs` yields does; names the cache of the ids.

        It should be much faster than reading the pairs.
        """

    def texts(self, languages: Languages) -> list[tuple[str, str]]:
        """The files of the training pairs: a key of each one's content, and how it is read.

        Both are the same whichever side is read as the source. Sources whose lists are equal have
        the same pairs in the same order; those that share a key may have some in common.
        """
        first, second = sorted(languages)
        return [(self.fingerprint("train", (first, second)), "")]

    def examples(self, language: str) -> list[str]:
        """A few sentences to try a model with, which anyone may be shown.

        Most sources have none: nobody said that their text is public.
        """
        return []

    def absolute(self) -> Self:
        """A copy with absolute file names, which a run folder can be used with from anywhere.

        It makes those of `FileName` fields absolute.
        """
        return absolute_fields(self)


def missing(split: Split, remedy: str) -> UserError:
    """The error of a source without this split; `remedy` names the options that add it."""
    held_out = " or data.validation_from_train" if split == "validation" else ""
    return UserError(f"no {split} set: give {remedy}{held_out}")
