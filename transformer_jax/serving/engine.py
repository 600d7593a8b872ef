"""What a server needs of a model, and a run of ours as such.

Each engine translates in one direction. All its methods but `encode` and `group` run in the one
thread that owns the device.
"""

from collections.abc import Callable, Hashable, Sequence
from functools import partial
from typing import Any, NamedTuple, Protocol

from transformer_jax.errors import UserError
from transformer_jax.models.config import ModelConfig
from transformer_jax.runs.folder import Run
from transformer_jax.translation.text_batches import padded_length, padded_lengths
from transformer_jax.translation.translator import Translation, Translator
from transformer_jax.viewing.explanation import Explanation, explain, next_pieces
from transformer_jax.vocabulary import EOS_ID


class Sentence(NamedTuple):
    """A sentence to translate."""

    pieces: Sequence[Any]  #: from `Engine.encode`
    prefix: tuple[int, ...] = ()  #: target ids that the translation begins with


class Engine(Protocol):
    """A model of one direction."""

    source: str  #: language code
    target: str
    batch_size: int  #: most sentences of one call of `translate`
    num_hypotheses: int  #: most translations of a sentence
    max_pieces: int  #: longest sentence that is not cut
    target_size: int  #: number of target ids
    explains: bool  #: whether prefixes and `explain` work

    def encode(self, text: str) -> Sequence[Any]:
        """The pieces of a text."""

    def group(self, sentence: Sentence) -> Hashable:
        """Sentences of one group are translated by one compiled program."""

    def translate(self, sentences: Sequence[Sentence]) -> list[list[Translation]]:
        """The translations of sentences of one group, best first."""

    def warm_up(self) -> list[Callable[[], Any]]:
        """A call for each program, which compiles it."""

    def explain(self, pieces: Sequence[Any], target: Sequence[int]) -> Explanation:
        """See `viewing.explanation.explain`."""

    def next_pieces(
        self, pieces: Sequence[Any], prefix: Sequence[int], count: int
    ) -> list[tuple[int, float]]:
        """See `viewing.explanation.next_pieces`."""


class JaxEngine:
    """A trained run."""

    def __init__(self, translator: Translator, source: str, target: str) -> None:
        self.source, self.target = source, target
        self.batch_size = translator.decode_config.batch_size
        self.num_hypotheses = translator.decode_config.method.num_hypotheses
        self.max_pieces = translator.max_source_length - 1
        size = translator.model_config.target_vocab_size
        assert size is not None, "the config of a trained model has its vocabulary sizes"
        self.target_size = size
        self.explains = isinstance(translator.model_config, ModelConfig)  # not an ensemble
        self._translator = translator
        self._encode = translator.source_encoder()
        # A lone sentence need not wait for the rows of a full batch.
        self._few = -(-self.batch_size // 8)

    def encode(self, text: str) -> list[int]:
        return self._encode(text)

    def group(self, sentence: Sentence) -> Hashable:
        length = max(len(sentence.pieces), len(sentence.prefix)) + 1
        return padded_length(length, self.max_pieces + 1), bool(sentence.prefix)

    def translate(self, sentences: Sequence[Sentence]) -> list[list[Translation]]:
        prefixes = [sentence.prefix for sentence in sentences]
        is_small = any(prefixes) or len(sentences) <= self._few
        decoded = self._translator.decode(
            [sentence.pieces for sentence in sentences],
            target_prefix=prefixes if any(prefixes) else None,
            batch_size=self._few if is_small else self.batch_size,
        )
        return decoded.translations

    def warm_up(self) -> list[Callable[[], Any]]:
        piece = EOS_ID + 2  # any that is no special one
        calls: list[Callable[[], Any]] = []
        for length in padded_lengths(self.max_pieces + 1):
            free = Sentence([piece] * (length - 1))
            forced = free._replace(prefix=(piece,))
            for batch in ([free], [free] * self.batch_size, [forced]):
                calls.append(partial(self.translate, batch))
            if self.explains:
                calls.append(partial(self.next_pieces, free.pieces, [], 1))
        return calls

    def explain(self, pieces: Sequence[Any], target: Sequence[int]) -> Explanation:
        return explain(self._translator, pieces, target)

    def next_pieces(
        self, pieces: Sequence[Any], prefix: Sequence[int], count: int
    ) -> list[tuple[int, float]]:
        return next_pieces(self._translator, pieces, prefix, count)


def open_engine(run: Run, checkpoint: str, **decoding: Any) -> Engine:
    """The engine of a trained run, with the fields of `DecodeConfig` in `decoding` replaced.

    Raises:
        UserError: as `Run.translator`; or the run does not name its languages.
    """
    data = run.config.data
    if not (data.source_language and data.target_language):
        raise UserError(
            f"--workdir={run.path}: data.source_language or data.target_language is empty"
        )
    translator = run.translator(checkpoint, **decoding)
    return JaxEngine(translator, data.source_language, data.target_language)
