"""The model of MetricX and its formula; see `metricx.py`."""

import dataclasses
import functools
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from transformer_jax.errors import UserError
from transformer_jax.metrics.base import Lines
from transformer_jax.metrics.batches import LENGTHS, in_batches
from transformer_jax.models.api import Params, apply, for_decoding
from transformer_jax.models.config import ModelConfig
from transformer_jax.vocabulary import BOS_ID
from transformer_jax.weights.arrangement import Arrangement
from transformer_jax.weights.layout import read_folder
from transformer_jax.weights.sentencepiece_model import open_model
from transformer_jax.weights.settings import Settings, read_json
from transformer_jax.weights.t5 import LAYOUT, SENTENCEPIECE

#: The piece whose logit is the score: <extra_id_10> of mT5.
SCORE_ID = 250089


class MetricXModel:
    """A model that is loaded; as `Judge`."""

    def __init__(self, folder: str, form: str, max_length: int, worst: float) -> None:
        self._form, self._max_length, self._worst = form, max_length, worst
        self._config, self._params, self._processor = _read(Path(folder))

    def __call__(self, sources: Lines, translations: Lines, references: Lines) -> np.ndarray:
        given = zip(sources, translations, references, strict=True)
        texts = [self._form.format(source=s, translation=t, reference=r) for s, t, r in given]
        most = self._max_length - 1  # EOS is counted, and then removed
        ids = [row[:most] for row in self._processor.encode(texts, num_threads=-1)]
        scores = in_batches(ids, functools.partial(_scores, self._config, self._params))
        return np.clip(scores, 0, self._worst)


@functools.partial(jax.jit, static_argnums=0)
def _scores(config: ModelConfig, params: Params, ids_BS: Any, mask_BS: Any) -> Array:
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
    origin = "which MetricX has from mT5; copy it from google/mt5-large"
    _, processor = open_model(path, SENTENCEPIECE, origin)
    folder = read_folder(path)
    # Ids stay as they are: nothing but this file makes any.
    same = Arrangement(np.arange(size))
    every = {str(i): i for i in range(size)}
    model, table = LAYOUT.read(folder, same, same, every, start=0)
    on_cpu = jax.default_backend() == "cpu"
    model = dataclasses.replace(
        model,
        unused_ids=(),
        max_length=LENGTHS[-1],
        matmul_dtype="float32" if on_cpu else "bfloat16",
    )
    params = table.to_params(model, folder.weights)
    return model, jax.jit(for_decoding, static_argnums=0)(model, params), processor
