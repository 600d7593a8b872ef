"""A run that was exported to CTranslate2, as an engine."""

import tempfile
from collections.abc import Callable, Hashable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from transformer_jax.commands.serve.engine import Documents, Sentence, languages_of
from transformer_jax.data.language_tags import towards
from transformer_jax.decoding.beam import Beam
from transformer_jax.decoding.config import DecodeConfig
from transformer_jax.errors import UserError
from transformer_jax.formats.export import export
from transformer_jax.runs.folder import Run
from transformer_jax.translation.text_batches import padded_length
from transformer_jax.translation.translator import Translation
from transformer_jax.vocabulary import BOS_ID, EOS_ID, PAD_ID

#: The settings of decoding that CTranslate2 has too.
_TAKEN = (
    *("method", "batch_size", "source_language", "target_language"),
    *("max_length_factor", "max_length_offset", "max_source_length"),
)


class CTranslate2Engine:
    """Exports a run to a temporary folder and translates with `ctranslate2.Translator`.

    Args:
        format: of the export, such as `ctranslate2(quantization=int8)`.
        run: not an ensemble.
        checkpoint: as in `Run.params`.
        **decoding: as in `open_engine`; the method must be beam search whose penalty CTranslate2
            has.

    Raises:
        UserError: CTranslate2 cannot express the model or the search.
    """

    threads = 1  # each uses all cores
    documents: Documents | None = None

    def __init__(self, format: str, run: Run, checkpoint: str, **decoding: Any) -> None:
        decode = replace(run.config.decode, **decoding)
        method = decode.method
        if not isinstance(method, Beam) or method.length_penalty_form != "power":
            raise UserError(
                f"engine={format}: its search is beam(length_penalty_form=power); say "
                "method='beam(length_penalty_form=power)'"
            )
        if decode != DecodeConfig(**{name: getattr(decode, name) for name in _TAKEN}):
            raise UserError(
                f"engine={format}: of the settings of decoding it takes the method, batch_size and "
                "the limits on length; leave out the others"
            )
        if not run.together.is_one:
            raise UserError(f"engine={format}: it runs one model, not several of one direction")
        self.source, self.target = languages_of(run, decode)
        self.batch_size, self._decode, self._method = decode.batch_size, decode, method
        self._tokenizers = towards(run.tokenizers(), decode.source_language, decode.target_language)
        self._max_length = run.config.model.max_length
        self._limit = min(decode.max_source_length, self._max_length)
        self.max_pieces = self._limit - 1
        target = self._tokenizers.target
        self._ids = {piece: i for i, piece in enumerate(target.pieces(range(target.vocab_size)))}
        self._never = [target.pieces([each]) for each in (PAD_ID, BOS_ID)]
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "model"
            export(run, format, path, checkpoint=checkpoint)
            import ctranslate2

            self._translator = ctranslate2.Translator(str(path))

    def encode(self, text: str) -> list[str]:
        tokenizer = self._tokenizers.source
        return list(tokenizer.pieces(tokenizer.encode(text)))

    def group(self, sentence: Sentence) -> Hashable:
        return padded_length(len(sentence.pieces) + 1, self._limit)

    def translate(self, sentences: Sequence[Sentence]) -> list[list[Translation]]:
        # One limit for the group, so that a translation does not depend on its batch.
        length = padded_length(len(sentences[0].pieces) + 1, self._limit)
        target = self._tokenizers.target
        prefix = target.pieces(target.prefix)  # such as a language token; not scored, as ours
        most = min(self._decode.max_target_length(length, len(prefix)), self._max_length) - 1
        results = self._translator.translate_batch(
            [sentence.pieces for sentence in sentences],
            target_prefix=[prefix] * len(sentences),
            beam_size=self._method.beam_size,
            num_hypotheses=self._method.beam_size,
            length_penalty=self._method.length_penalty,
            patience=self._method.patience or 1.0,  # CTranslate2 has no exact stop
            max_decoding_length=most,
            min_decoding_length=0,
            max_input_length=0,
            return_scores=True,
            suppress_sequences=self._never,
            disable_unk=not self._decode.allow_unk,
        )
        # CTranslate2 takes one number of hypotheses for the whole batch. It is always the same, so
        # that a translation does not depend on its batch; what was not asked for is left out here.
        return [
            [
                self._translation(pieces, score, is_cut=len(pieces) == most)
                for pieces, score in zip(result.hypotheses, result.scores, strict=True)
            ][: sentence.num_best]
            for result, sentence in zip(results, sentences, strict=True)
        ]

    def _translation(self, pieces: Sequence[str], score: float, *, is_cut: bool) -> Translation:
        # Where it was cut at its limit, its score is without EOS.
        ids = (*(self._ids[piece] for piece in pieces), *([] if is_cut else [EOS_ID]))
        text = " ".join(self._tokenizers.target.decode(ids).splitlines())
        log_prob = score * len(ids) ** self._method.length_penalty
        return Translation(text, score, log_prob, ids, is_cut)

    def warm_up(self) -> list[Callable[[], Any]]:
        return [partial(self.translate, [Sentence(self.encode("a"))])]  # nothing is compiled
