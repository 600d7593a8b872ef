"""Exported models, loaded by the software that they are written for."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from tests.interop.exporter_suite import MAX_LENGTH, Ids, Load, Ours
from tests.interop.jax_alone import Programs
from transformer_jax.interop.exporters import safetensors
from transformer_jax.interop.exporters.base import TrainedModel
from transformer_jax.paths import as_path
from transformer_jax.vocabulary import BOS_ID, PAD_ID


class InCTranslate2:
    """`ctranslate2.Translator`, which takes pieces."""

    def __init__(self, folder: Path, model: TrainedModel) -> None:
        import ctranslate2

        self._translator = ctranslate2.Translator(str(folder), compute_type="default")
        self._sides = model.tokenizers.source, model.tokenizers.target

    def log_probs(self, sources: Sequence[Ids], targets: Sequence[Ids]) -> list[np.ndarray]:
        source, target = (
            [side.pieces(ids) for ids in sentences]
            for side, sentences in zip(self._sides, (sources, targets), strict=True)
        )
        scored = self._translator.score_batch(source, target)
        return [np.array(result.log_probs) for result in scored]

    def greedy(self, sources: Sequence[Ids]) -> list[Ids]:
        source, target = self._sides
        results = self._translator.translate_batch(
            [source.pieces(ids) for ids in sources],
            beam_size=1,
            max_decoding_length=MAX_LENGTH - 1,
            min_decoding_length=0,
            # Our searches never choose these.
            suppress_sequences=[target.pieces([PAD_ID]), target.pieces([BOS_ID])],
        )
        ids = {piece: i for i, piece in enumerate(target.pieces(range(target.vocab_size)))}
        return [[ids[piece] for piece in result.hypotheses[0]] for result in results]


def in_jax_alone(folder: Path, model: TrainedModel) -> Programs:
    """The programs, in this process; a test loads them in one without this package."""
    return Programs(folder)


def in_this_package(folder: Path, model: TrainedModel) -> Ours:
    return Ours(safetensors.read(as_path(folder)))


#: Format -> the package that it needs, if it is optional, and what loads it.
RUNTIMES: dict[str, tuple[str | None, Load]] = {
    "ctranslate2": ("ctranslate2", InCTranslate2),
    "safetensors": (None, in_this_package),
    "stablehlo": (None, in_jax_alone),
}
