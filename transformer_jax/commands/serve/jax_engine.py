"""A run of ours as an engine."""

import contextlib
from collections.abc import Callable, Hashable, Sequence
from functools import partial
from typing import Any

from transformer_jax.commands.serve.engine import Documents, Sentence, languages_of
from transformer_jax.errors import UserError
from transformer_jax.runs.folder import Run
from transformer_jax.translation.text_batches import padded_length, padded_lengths
from transformer_jax.translation.translator import Translation, Translator
from transformer_jax.viewing.explanation import next_pieces
from transformer_jax.vocabulary import EOS_ID

_PIECE = EOS_ID + 2  # any that is no special one


class JaxEngine:
    """A trained run, or several that translate together.

    Attributes:
        translator: with their model.
        explains: whether it is one model, which takes prefixes and can be explained.
    """

    def __init__(self, translator: Translator, source: str, target: str) -> None:
        self.source, self.target = source, target
        self.rows = translator.row_choices()
        self.batch_size = self.rows[-1]
        self.threads = translator.threads
        self.num_hypotheses = translator.decode_config.method.num_hypotheses
        self.max_pieces = translator.max_source_length - 1
        self.target_size = translator.model.target_vocab_size
        pieces = translator.pieces()
        room = pieces.room(translator.decode_config)
        self.documents = Documents(room, pieces.text) if room else None
        self.translator, self.explains = translator, translator.model.is_one
        self.encode = translator.source_encoder()

    def group(self, sentence: Sentence) -> Hashable:
        length = max(len(sentence.pieces), len(sentence.prefix)) + 1
        return padded_length(length, self.max_pieces + 1), bool(sentence.prefix)

    def translate(self, sentences: Sequence[Sentence]) -> list[list[Translation]]:
        prefixes = [sentence.prefix for sentence in sentences]
        fits = [rows for rows in self.rows if rows >= len(sentences)]
        decoded = self.translator.decode(
            [sentence.pieces for sentence in sentences],
            target_prefix=prefixes if any(prefixes) else None,
            num_best=[each.num_best or self.num_hypotheses for each in sentences],
            batch_size=self.rows[0] if any(prefixes) else fits[0],
        )
        return decoded.translations

    def warm_up(self) -> list[Callable[[], Any]]:
        lengths = [[_PIECE] * (length - 1) for length in padded_lengths(self.max_pieces + 1)]
        forced = [[Sentence(pieces, (_PIECE,))] for pieces in lengths]
        free = [[Sentence(pieces)] * rows for rows in self.rows for pieces in lengths]
        batches = (*free, *forced)  # those of one sentence first
        calls: list[Callable[[], Any]] = [partial(self.translate, batch) for batch in batches]
        with contextlib.suppress(UserError):
            self.translator.model.check_alignment()
            calls += [partial(self.translator.align, [pieces], [pieces]) for pieces in lengths]
        if self.explains:
            calls += [partial(next_pieces, self.translator, pieces, [], 1) for pieces in lengths]
        return calls


def open_jax(kind: str, run: Run, checkpoint: str, **decoding: Any) -> JaxEngine:
    """See `engines.open_engine`."""
    if kind != "jax":
        raise UserError(f"engine={kind}: jax has no options")
    translator = run.translator(checkpoint, **decoding)
    return JaxEngine(translator, *languages_of(run, translator.decode_config))
