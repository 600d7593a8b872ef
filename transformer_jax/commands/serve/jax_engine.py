"""A run of ours as an engine."""

import contextlib
from collections.abc import Callable, Hashable, Sequence
from functools import partial
from typing import Any

from transformer_jax.commands.serve.engine import Documents, Sentence, languages_of
from transformer_jax.data.alignments import Links
from transformer_jax.errors import UserError
from transformer_jax.runs.folder import Run
from transformer_jax.translation.model import SingleModel
from transformer_jax.translation.text_batches import padded_length, padded_lengths
from transformer_jax.translation.translator import Translation, Translator
from transformer_jax.viewing.explanation import Explanation, explain, next_pieces
from transformer_jax.vocabulary import EOS_ID

_PIECE = EOS_ID + 2  # any that is no special one


class JaxEngine:
    """A trained run, or several that translate together."""

    def __init__(self, translator: Translator, source: str, target: str) -> None:
        self.source, self.target = source, target
        self.rows = translator.row_choices()
        self.batch_size = self.rows[-1]
        self.threads = translator.threads
        self.num_hypotheses = translator.decode_config.method.num_hypotheses
        self.max_pieces = translator.max_source_length - 1
        self.target_size = translator.model.target_vocab_size
        room = translator.room()
        self.documents = Documents(room, translator.pieces().text) if room else None
        self._translator = translator
        self._encode = translator.source_encoder()

    def encode(self, text: str) -> list[int]:
        return self._encode(text)

    def unseen_words(self, text: str) -> list[str]:
        return self._translator.unseen_words(text)

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
        lengths = self._one_of_each_length()
        forced = [[Sentence(pieces, (_PIECE,))] for pieces in lengths]
        free = [[Sentence(pieces)] * rows for rows in self.rows for pieces in lengths]
        batches = (*free, *forced)  # those of one sentence first
        calls: list[Callable[[], Any]] = [partial(self.translate, batch) for batch in batches]
        with contextlib.suppress(UserError):
            self.check_alignment()
            calls += [partial(self._translator.align, [pieces], [pieces]) for pieces in lengths]
        return calls

    def check_alignment(self) -> None:
        self._translator.model.check_alignment()

    def align(
        self, sentences: Sequence[str], targets: Sequence[Sequence[int]], *, every_source: bool
    ) -> list[Links]:
        return self._translator.align(sentences, targets, every_source=every_source)

    def _one_of_each_length(self) -> list[list[int]]:
        return [[_PIECE] * (length - 1) for length in padded_lengths(self.max_pieces + 1)]


class OneModelEngine(JaxEngine):
    """A trained run whose model alone translates, so that it can be explained."""

    def warm_up(self) -> list[Callable[[], Any]]:
        asked = [partial(self.next_pieces, p, [], 1) for p in self._one_of_each_length()]
        return [*super().warm_up(), *asked]

    def explain(self, pieces: Sequence[Any], target: Sequence[int]) -> Explanation:
        return explain(self._translator, pieces, target)

    def next_pieces(
        self, pieces: Sequence[Any], prefix: Sequence[int], count: int
    ) -> list[tuple[int, float]]:
        return next_pieces(self._translator, pieces, prefix, count)


def jax_engine(translator: Translator, source: str, target: str) -> JaxEngine:
    """The engine of a translator in one direction."""
    is_one = isinstance(translator.model, SingleModel)
    return (OneModelEngine if is_one else JaxEngine)(translator, source, target)


def open_jax(kind: str, run: Run, checkpoint: str, **decoding: Any) -> JaxEngine:
    """See `engines.open_engine`."""
    if kind != "jax":
        raise UserError(f"engine={kind}: jax has no options")
    translator = run.translator(checkpoint, **decoding)
    return jax_engine(translator, *languages_of(run, translator.decode_config))
