"""MetricX: an mT5 that reads a translation and predicts how bad it is, from 0 to 25.

    score = clip(logit of <extra_id_10> after one decoder step, 0, 25)

MetricX-23 (Juraska et al. 2023, aclanthology.org/2023.wmt-1.63) has one model that reads the
reference and one that reads the source; MetricX-24 (2024.wmt-1.35) has one for both. The score is
on the scale of MQM, so lower is better.

The form of the input and the formula are those of `predict.py` and `models.py` in
github.com/google-research/metricx: the text below is cut by mT5's SentencePiece model, at most
`max_input_length` pieces with EOS, then EOS is removed; the decoder reads one PAD, and the score is
the logit of piece 250089. The weights are `google/metricx-24-hybrid-large-v2p6` and others on
Hugging Face's hub; the SentencePiece model is that of `google/mt5-large`.

Cost: one pass of the encoder over the three texts together, and one step of the decoder.
"""

import dataclasses
import functools
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
import numpy as np

from transformer_jax.errors import UserError
from transformer_jax.metrics.base import Judge, Metric
from transformer_jax.models.api import Params, apply, for_decoding
from transformer_jax.models.config import ModelConfig
from transformer_jax.published.arrangement import Arrangement
from transformer_jax.published.layout import read_folder
from transformer_jax.published.settings import Settings, read_json
from transformer_jax.published.t5 import LAYOUT, SENTENCEPIECE
from transformer_jax.sentencepiece_model import load_processor
from transformer_jax.vocabulary import BOS_ID

#: The piece whose logit is the score: <extra_id_10> of mT5.
SCORE_ID = 250089

#: Lengths that texts are padded to, so that few shapes are compiled.
_LENGTHS = (32, 64, 96, 128, 192, 256, 384, 512, 768, 1024, 1536)
_SLOTS = 4096  # most [rows, length] slots of a batch


@dataclass(frozen=True)
class MetricX(Metric):
    """MetricX-24 with the source and a reference."""

    needs_reference: ClassVar[bool] = True
    worst: ClassVar[float] = 25.0
    best: ClassVar[float] = 0.0
    title: ClassVar[str] = "MetricX-24"
    # What the model reads.
    form: ClassVar[str] = "source: {source} candidate: {translation} reference: {reference}"
    max_length: ClassVar[int] = 1536  # pieces it was trained on, EOS included

    def open(self) -> Judge:
        return _Judge(self)


@dataclass(frozen=True)
class MetricXQE(MetricX):
    """MetricX-24 with the source alone: an estimate of the quality without a reference."""

    needs_reference: ClassVar[bool] = False
    title: ClassVar[str] = "MetricX-24-QE"
    form: ClassVar[str] = "source: {source} candidate: {translation}"


@dataclass(frozen=True)
class MetricX23(MetricX):
    """MetricX-23 with a reference alone."""

    title: ClassVar[str] = "MetricX-23"
    form: ClassVar[str] = "candidate: {translation} reference: {reference}"
    max_length: ClassVar[int] = 1024


@dataclass(frozen=True)
class MetricX23QE(MetricX23):
    """MetricX-23-QE, which reads the source and no reference."""

    needs_reference: ClassVar[bool] = False
    title: ClassVar[str] = "MetricX-23-QE"
    form: ClassVar[str] = "candidate: {translation} source: {source}"


class _Judge:
    """A model that is loaded; as `Judge`."""

    def __init__(self, metric: MetricX) -> None:
        self._metric = metric
        self._config, self._params, self._processor = _read(Path(metric.model))

    def __call__(
        self, sources: Sequence[str], translations: Sequence[str], references: Sequence[str]
    ) -> np.ndarray:
        form = self._metric.form
        given = zip(sources, translations, references, strict=True)
        names = ("source", "translation", "reference")
        texts = [form.format(**dict(zip(names, each, strict=True))) for each in given]
        most = self._metric.max_length - 1  # EOS is counted, and then removed
        ids = [row[:most] for row in self._processor.encode(texts, num_threads=-1)]
        order = sorted(range(len(ids)), key=lambda number: -len(ids[number]))
        scores = np.zeros(len(ids), np.float32)
        while order:
            length = min(x for x in _LENGTHS if x >= len(ids[order[0]]))
            count = _SLOTS // length
            batch, order = order[:count], order[count:]
            ids_BS, mask_BS = np.zeros((count, length), np.int32), np.zeros((count, length), bool)
            for row, number in enumerate(batch):
                ids_BS[row, : len(ids[number])] = ids[number]
                mask_BS[row, : len(ids[number])] = True
            found = _scores(self._config, self._params, ids_BS, mask_BS)
            scores[batch] = np.asarray(found)[: len(batch)]
        return np.clip(scores, 0, self._metric.worst)


@functools.partial(jax.jit, static_argnums=0)
def _scores(config: ModelConfig, params: Params, ids_BS: Any, mask_BS: Any) -> jax.Array:
    """The logit of `SCORE_ID` after one decoder step, float32 [B]."""
    start_B1 = jnp.full((ids_BS.shape[0], 1), BOS_ID)  # stands for the config's `start_id`
    logits_B1V = apply(config, params, ids_BS, mask_BS, start_B1, jnp.ones_like(start_B1, bool))
    return logits_B1V[:, 0, SCORE_ID]


def _read(path: Path) -> tuple[ModelConfig, Params, Any]:
    """(config, parameters on the device, SentencePiece's processor) of a folder."""
    if not path.is_dir():
        raise UserError(f"{path}: no such folder; expected the downloaded files of a MetricX model")
    config = Settings(str(path / "config.json"), read_json(path / "config.json"))
    kind = config.get("model_type", str, "")
    size = config.number("vocab_size") if kind == "mt5" else 0
    if size <= SCORE_ID:
        what = f"an mT5 of {size} pieces" if size else f"model_type={kind!r}" if kind else "a run"
        raise UserError(
            f"{path}: {what}, but MetricX is an mT5 whose score is the logit of piece {SCORE_ID}"
        )
    name = next((name for name in SENTENCEPIECE if (path / name).is_file()), SENTENCEPIECE[0])
    try:
        processor = load_processor((path / name).read_bytes(), str(path / name))
    except FileNotFoundError:
        raise UserError(
            f"{path}: {name} is missing, which MetricX has from mT5; copy it from google/mt5-large"
        ) from None
    folder = read_folder(path)
    # Ids stay as they are: nothing but this file makes any.
    same = Arrangement(np.arange(size))
    every = {str(i): i for i in range(size)}
    model, table = LAYOUT.read(folder, same, same, every, start=0)
    on_cpu = jax.default_backend() == "cpu"
    model = dataclasses.replace(
        model,
        unused_ids=(),
        max_length=_LENGTHS[-1],
        matmul_dtype="float32" if on_cpu else "bfloat16",
    )
    params = table.to_params(model, folder.weights)
    return model, jax.jit(for_decoding, static_argnums=0)(model, params), processor
