"""What a server needs of a model.

Each engine translates in one direction. All its methods but `encode` and `group` run in the threads
of the device, of which there are `threads`.
"""

from collections.abc import Callable, Hashable, Sequence
from typing import Any, NamedTuple, Protocol

from transformer_jax.decoding.config import DecodeConfig
from transformer_jax.errors import UserError
from transformer_jax.runs.folder import Run
from transformer_jax.translation.documents import Room
from transformer_jax.translation.translator import Translation


class Sentence(NamedTuple):
    """A sentence to translate."""

    pieces: Sequence[Any]  #: from `Engine.encode`
    prefix: tuple[int, ...] = ()  #: target ids that the translation begins with; see `explains`
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
    max_pieces: int  #: longest sentence that is not cut
    documents: Documents | None  #: how to translate them, of a model that was trained on blocks

    def encode(self, text: str) -> Sequence[Any]:
        """The pieces of a text."""

    def group(self, sentence: Sentence) -> Hashable:
        """Sentences of one group are translated by one compiled program."""

    def translate(self, sentences: Sequence[Sentence]) -> list[list[Translation]]:
        """The translations of sentences of one group, best first."""

    def warm_up(self) -> list[Callable[[], Any]]:
        """A call for each program, which compiles it."""


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
