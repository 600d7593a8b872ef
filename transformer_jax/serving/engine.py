"""What a server needs of a model, and a run of ours as such.

Each engine translates in one direction. All its methods but `encode` and `group` run in the threads
of the device, of which there are `threads`.
"""

from collections.abc import Callable, Hashable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, NamedTuple, Protocol

from transformer_jax.decoding.config import DecodeConfig
from transformer_jax.errors import UserError
from transformer_jax.runs.folder import Run
from transformer_jax.translation.model import SingleModel
from transformer_jax.translation.run_batches import num_threads
from transformer_jax.translation.text_batches import padded_length, padded_lengths
from transformer_jax.translation.translator import Translation, Translator
from transformer_jax.viewing.explanation import Explanation, explain, next_pieces
from transformer_jax.vocabulary import EOS_ID


class Sentence(NamedTuple):
    """A sentence to translate."""

    pieces: Sequence[Any]  #: from `Engine.encode`
    prefix: tuple[int, ...] = ()  #: target ids that the translation begins with
    num_best: int | None = None  #: at most so many translations; None: as many as the engine gives


class Engine(Protocol):
    """A model of one direction."""

    source: str  #: language code
    target: str
    batch_size: int  #: most sentences of one call of `translate`
    threads: int  #: calls that may run at the same time
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
        self.threads = num_threads(translator.params)
        self.num_hypotheses = translator.decode_config.method.num_hypotheses
        self.max_pieces = translator.max_source_length - 1
        self.target_size = translator.model.target_vocab_size
        self.explains = isinstance(translator.model, SingleModel)
        self._translator = translator
        self._encode = translator.source_encoder()
        # Few sentences need not wait for the rows of a full batch.
        self.rows = sorted({-(-self.batch_size * part // 8) for part in (1, 4, 6, 8)})

    def encode(self, text: str) -> list[int]:
        return self._encode(text)

    def group(self, sentence: Sentence) -> Hashable:
        length = max(len(sentence.pieces), len(sentence.prefix)) + 1
        return padded_length(length, self.max_pieces + 1), bool(sentence.prefix)

    def translate(self, sentences: Sequence[Sentence]) -> list[list[Translation]]:
        prefixes = [sentence.prefix for sentence in sentences]
        fits = [rows for rows in self.rows if rows >= len(sentences)]
        decoded = self._translator.decode(
            [sentence.pieces for sentence in sentences],
            target_prefix=prefixes if any(prefixes) else None,
            num_best=[each.num_best or self.num_hypotheses for each in sentences],
            batch_size=self.rows[0] if any(prefixes) else fits[0],
        )
        return decoded.translations

    def warm_up(self) -> list[Callable[[], Any]]:
        piece = EOS_ID + 2  # any that is no special one
        calls: list[Callable[[], Any]] = []
        for length in padded_lengths(self.max_pieces + 1):
            free = Sentence([piece] * (length - 1))
            forced = free._replace(prefix=(piece,))
            for batch in ([forced], *([free] * rows for rows in self.rows)):
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
            f"--workdir={run.path}: data.source_language or data.target_language is empty"
        )
    return source, target


def open_engine(kind: str, run: Run, checkpoint: str, **decoding: Any) -> Engine:
    """The engine of a trained run, with the fields of `DecodeConfig` in `decoding` replaced.

    Args:
        kind: `jax`, or CTranslate2's format of export, such as `ctranslate2(quantization=int8)`.
        run: the run, or an ensemble.
        checkpoint: as in `Run.params`.
        **decoding: as in `Run.translator`.

    Raises:
        UserError: as `Run.translator`; or the engine cannot run the model.
    """
    if kind == "jax":
        translator = run.translator(checkpoint, **decoding)
        return JaxEngine(translator, *languages_of(run, translator.decode_config))
    if kind.partition("(")[0] != "ctranslate2":
        raise UserError(f"engine={kind}: use jax or ctranslate2")
    from transformer_jax.serving.ctranslate2 import CTranslate2Engine

    return CTranslate2Engine(run, kind, checkpoint, replace(run.config.decode, **decoding))
