"""What a server needs of a model.

Each engine translates in one direction. All its methods but `encode` and `group` run in the threads
of the device, of which there are `threads`.
"""

from collections.abc import Callable, Hashable, Sequence
from typing import Any, NamedTuple, Protocol, runtime_checkable

from transformer_jax.data.alignments import Links
from transformer_jax.decoding.config import DecodeConfig
from transformer_jax.errors import UserError
from transformer_jax.runs.folder import Run
from transformer_jax.translation.documents import Room
from transformer_jax.translation.translator import Translation
from transformer_jax.viewing.explanation import Explanation


class Sentence(NamedTuple):
    """A sentence to translate."""

    pieces: Sequence[Any]  #: from `Engine.encode`
    prefix: tuple[int, ...] = ()  #: target ids that the translation begins with; see `Explains`
    num_best: int | None = None  #: at most so many translations; None: as many as the engine gives


class Documents(NamedTuple):
    """What it takes to translate documents."""

    room: Room  #: how long blocks are
    text: Callable[[Sequence[int]], str]  #: of target ids


class Engine(Protocol):
    """A model of one direction."""

    source: str  #: language code
    target: str
    batch_size: int  #: most sentences of one call of `translate`
    threads: int  #: calls that may run at the same time
    num_hypotheses: int  #: most translations of a sentence
    max_pieces: int  #: longest sentence that is not cut
    target_size: int  #: number of target ids

    @property
    def documents(self) -> Documents | None:
        """How to translate documents, of a model that was trained on blocks of sentences."""

    def encode(self, text: str) -> Sequence[Any]:
        """The pieces of a text."""

    def group(self, sentence: Sentence) -> Hashable:
        """Sentences of one group are translated by one compiled program."""

    def translate(self, sentences: Sequence[Sentence]) -> list[list[Translation]]:
        """The translations of sentences of one group, best first."""

    def warm_up(self) -> list[Callable[[], Any]]:
        """A call for each program, which compiles it."""


@runtime_checkable
class Explains(Engine, Protocol):
    """An engine that also takes prefixes of a translation and says how probable they are."""

    def unseen_words(self, text: str) -> list[str]:
        """See `Translator.unseen_words`."""

    def explain(self, pieces: Sequence[Any], target: Sequence[int]) -> Explanation:
        """See `viewing.explanation.explain`."""

    def next_pieces(
        self, pieces: Sequence[Any], prefix: Sequence[int], count: int
    ) -> list[tuple[int, float]]:
        """See `viewing.explanation.next_pieces`."""


@runtime_checkable
class Aligns(Engine, Protocol):
    """An engine that knows which words of a sentence and its translation belong together."""

    def check_alignment(self) -> None:
        """Raises UserError where its model does not know it."""

    def align(
        self, sentences: Sequence[str], targets: Sequence[Sequence[int]], *, every_source: bool
    ) -> list[Links]:
        """See `Translator.align`, of sentences and their `Translation.tokens`."""


def languages_of(run: Run, decode: DecodeConfig) -> tuple[str, str]:
    """(source, target) that a run is used with.

    Raises:
        UserError: neither the run nor the decoding names them.
    """
    data = run.config.data
    source = decode.source_language or data.source_language
    target = decode.target_language or data.target_language
    if not (source and target):
        raise UserError(
            f"--workdir={run.path}: data.source_language or data.target_language is empty: import "
            "the model with --source_language=CODE --target_language=CODE, or write the codes into "
            "its config.json"
        )
    return source, target
