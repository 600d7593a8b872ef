"""The models of COMET-22 and CometKiwi and their formulas; see `comet.py`."""

import functools
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from transformer_jax.errors import UserError
from transformer_jax.metrics.batches import in_batches
from transformer_jax.weights.sentencepiece_model import load_processor
from transformer_jax.weights.settings import Settings, parse_yaml
from transformer_jax.weights.torch_files import read_torch
from transformer_jax.weights.weights import Weights

#: `<s>`, `<pad>`, `</s>` and `<unk>` of XLM-R; other pieces have SentencePiece's id plus 1.
BEGIN, PADDING, END, UNKNOWN = 0, 1, 2, 3

_MOST = 512  # ids of a text
_HEAD = 64  # features of an attention head, in both sizes of XLM-R

Tensors = dict[str, Any]


class Form(NamedTuple):
    """What `hparams.yaml` says of a kind of models."""

    title: str
    kind: str  #: `class_identifier`
    needed: dict[str, Any]  #: other keys


WITH_REFERENCE = Form("COMET-22", "regression_metric", {"layer": "mix", "pool": "avg"})
WITHOUT = Form(
    "CometKiwi-22", "unified_metric", {"sent_layer": "mix", "input_segments": ["mt", "src"]}
)


class CometModel:
    """A model that is loaded; as `Judge`."""

    def __init__(self, folder: str, *, needs_reference: bool) -> None:
        self._needs_reference, path = needs_reference, Path(folder)
        settings = _settings(path, WITH_REFERENCE if needs_reference else WITHOUT)
        self._processor = _processor(path)
        checkpoint = path / "checkpoints" / "model.ckpt"
        if not checkpoint.is_file():
            raise UserError(f"{checkpoint}: no such file; it has the weights of the metric")
        weights = Weights(str(checkpoint), read_torch(checkpoint, within="state_dict"))
        self._mix = _mix(weights, settings)
        self._regressor = _regressor(weights, len(settings.get("hidden_sizes", list)))
        encoder = _encoder(weights)
        if len(self._mix) != len(encoder["layers"]) + 1:
            raise UserError(
                f"{checkpoint}: the mix is of {len(self._mix)} layers, but the encoder has "
                f"{len(encoder['layers'])} and the embeddings"
            )
        weights.check_all_taken(_IGNORED)
        self._encoder = jax.device_put(encoder)

    def __call__(
        self, sources: Sequence[str], translations: Sequence[str], references: Sequence[str]
    ) -> np.ndarray:
        ids = self._ids
        if not self._needs_reference:
            pairs = zip(ids(translations), ids(sources), strict=True)
            rows = [[BEGIN, *t, END, END, *s, END][:_MOST] for t, s in pairs]
            return self._score(self._embed(rows, at_first=True))
        s, t, r = (
            self._embed([[BEGIN, *row, END] for row in ids(texts)], at_first=False)
            for texts in (sources, translations, references)
        )
        return self._score(np.concatenate([t, r, t * r, abs(t - r), t * s, abs(t - s)], axis=-1))

    def _ids(self, texts: Sequence[str]) -> list[list[int]]:
        """The ids of each text, as many as fit between `<s>` and `</s>`."""
        pieces = self._processor.encode(list(texts), num_threads=-1)
        unknown = self._processor.unk_id()
        return [[UNKNOWN if i == unknown else i + 1 for i in row[: _MOST - 4]] for row in pieces]

    def _embed(self, rows: list[list[int]], *, at_first: bool) -> np.ndarray:
        """The mix of layers [N, D]: at the first id of each row, or its mean over all."""
        return in_batches(rows, functools.partial(_embed, self._encoder, self._mix, at_first))

    def _score(self, features_NF: np.ndarray) -> np.ndarray:
        if not len(features_NF):
            return np.zeros(0, np.float32)
        *hidden, (kernel, bias) = self._regressor
        for each in hidden:
            features_NF = np.tanh(features_NF @ each[0].T + each[1])
        return (features_NF @ kernel.T + bias)[:, 0]


@functools.partial(jax.jit, static_argnums=2)
def _embed(
    encoder: Tensors, mix_L: jax.Array, at_first: bool, ids_BS: jax.Array, mask_BS: jax.Array
) -> jax.Array:
    layers = _layers(encoder, ids_BS, mask_BS)
    mixed_BSD = sum(weight * x_BSD for weight, x_BSD in zip(mix_L, layers, strict=True))
    if at_first:
        return mixed_BSD[:, 0]
    kept_BSD = jnp.where(mask_BS[..., None], mixed_BSD, 0.0)
    return kept_BSD.sum(axis=1) / jnp.maximum(mask_BS.sum(axis=1), 1)[:, None]


def _layers(encoder: Tensors, ids_BS: jax.Array, mask_BS: jax.Array) -> list[jax.Array]:
    """XLM-R's embeddings and the output of each layer, [B, S, D]."""

    def dense(x: jax.Array, weights: Tensors) -> jax.Array:
        return x @ weights["weight"].T + weights["bias"]

    def heads(x_BSD: jax.Array) -> jax.Array:
        return x_BSD.reshape(*x_BSD.shape[:2], -1, _HEAD)

    # Positions count from the id of padding, and padding has its own.
    position_BS = jnp.cumsum(mask_BS, axis=1) * mask_BS + PADDING
    tables = [encoder["embeddings"][f"{name}_embeddings"]["weight"] for name in _TABLES]
    words_VD, positions, types = tables
    x_BSD = words_VD[ids_BS] + positions[position_BS] + types[0]
    x_BSD = _norm(x_BSD, encoder["embeddings"]["LayerNorm"])
    found = [x_BSD]
    for layer in encoder["layers"]:
        attention = layer["attention"]
        q, k, v = (heads(dense(x_BSD, attention["self"][name])) for name in _PROJECTIONS)
        scores_BHST = jnp.einsum("bshk,bthk->bhst", q, k) / _HEAD**0.5
        scores_BHST = jnp.where(mask_BS[:, None, None], scores_BHST, jnp.finfo(jnp.float32).min)
        read = jnp.einsum("bhst,bthk->bshk", jax.nn.softmax(scores_BHST), v).reshape(x_BSD.shape)
        output = attention["output"]
        x_BSD = _norm(x_BSD + dense(read, output["dense"]), output["LayerNorm"])
        hidden = jax.nn.gelu(dense(x_BSD, layer["intermediate"]["dense"]), approximate=False)
        output = layer["output"]
        x_BSD = _norm(x_BSD + dense(hidden, output["dense"]), output["LayerNorm"])
        found.append(x_BSD)
    return found


def _norm(x: jax.Array, weights: Tensors) -> jax.Array:
    mean = x.mean(axis=-1, keepdims=True)
    variance = ((x - mean) ** 2).mean(axis=-1, keepdims=True)
    return (x - mean) / jnp.sqrt(variance + 1e-5) * weights["weight"] + weights["bias"]


_TABLES = ("word", "position", "token_type")
_PROJECTIONS = ("query", "key", "value")
_DENSE = (
    *(f"attention.self.{name}" for name in _PROJECTIONS),
    *("attention.output.dense", "attention.output.LayerNorm"),
    *("intermediate.dense", "output.dense", "output.LayerNorm"),
)


def softmax(x: np.ndarray) -> np.ndarray:
    """exp(x_i) / sum_j exp(x_j)."""
    exponentials = np.exp(x - x.max())
    return exponentials / exponentials.sum()


def sparsemax(x: np.ndarray) -> np.ndarray:
    """The distribution nearest to x, max(x - tau, 0): Martins, Astudillo 2016, arXiv:1602.02068."""
    ordered = np.sort(x)[::-1]
    sums, counts = np.cumsum(ordered), np.arange(1, len(x) + 1)
    support = int((1 + counts * ordered > sums).sum())
    return np.maximum(x - (sums[support - 1] - 1) / support, 0)


#: Tensors of training alone, and of the marks of words in CometKiwi.
_IGNORED = (
    "encoder.model.embeddings.position_ids",
    *(f"layerwise_attention.dropout_{name}" for name in ("mask", "fill")),
    *(f"hidden2tag.{name}" for name in ("weight", "bias")),
)

#: What makes a distribution of the layers' weights. The patched name is softmax in COMET.
_TRANSFORMATIONS: Mapping[str, Callable[[np.ndarray], np.ndarray]] = {
    "softmax": softmax,
    "sparsemax": sparsemax,
    "sparsemax_patch": softmax,
}


def _settings(path: Path, form: Form) -> Settings:
    """The keys of `hparams.yaml`, checked."""
    file = path / "hparams.yaml"
    try:
        settings = Settings(str(file), parse_yaml(str(file), file.read_bytes()))
    except OSError:
        raise UserError(
            f"{path}: no hparams.yaml here; expected the downloaded files of a COMET model"
        ) from None
    kind = settings.get("class_identifier", str)
    if kind != form.kind:
        raise UserError(f"{file}: a {kind}, but {form.title} is a {form.kind}")
    only: dict[str, Any] = {
        "encoder_model": "XLM-RoBERTa",
        "activations": "Tanh",
        "final_activation": None,
        "layer_norm": False,
    }
    settings.need(only | form.needed)
    if settings.get("layer_norm", bool, True):  # COMET's own default
        raise UserError(f"{file}: layer_norm=True cannot be expressed; only False")
    return settings


def _processor(path: Path) -> Any:
    name = "sentencepiece.bpe.model"
    try:
        return load_processor((path / name).read_bytes(), str(path / name))
    except OSError:
        raise UserError(
            f"{path}: {name} is missing, which COMET has from XLM-R; copy it from "
            "FacebookAI/xlm-roberta-large"
        ) from None


def _mix(weights: Weights, settings: Settings) -> np.ndarray:
    """The weight of each layer, gamma in it: float32 [layers + 1]."""
    transform = settings.choose("layer_transformation", _TRANSFORMATIONS, "softmax")
    name, found = "layerwise_attention.scalar_parameters", list[float]()
    while f"{name}.{len(found)}" in weights:
        found.append(weights.take(f"{name}.{len(found)}", (1,))[0])
    gamma = weights.take("layerwise_attention.gamma", (1,))
    return (gamma * transform(np.array(found))).astype(np.float32)


def _regressor(weights: Weights, num_hidden: int) -> list[tuple[np.ndarray, np.ndarray]]:
    """(kernel [out, in], bias) of each layer; between two are an activation and dropout."""
    names = [f"estimator.ff.{3 * number}" for number in range(num_hidden + 1)]
    return [(weights.take(f"{name}.weight"), weights.take(f"{name}.bias")) for name in names]


def _encoder(weights: Weights) -> Tensors:
    """The tensors of XLM-R, by the parts of their names."""
    root = "encoder.model."

    def pair(name: str, *, has_bias: bool = True) -> Tensors:
        kinds = ("weight", "bias") if has_bias else ("weight",)
        return {kind: weights.take(f"{root}{name}.{kind}") for kind in kinds}

    names = [f"{table}_embeddings" for table in _TABLES]
    embeddings = {name: pair(f"embeddings.{name}", has_bias=False) for name in names}
    embeddings["LayerNorm"] = pair("embeddings.LayerNorm")
    width = embeddings[names[0]]["weight"].shape[1]
    if width % _HEAD:
        raise UserError(f"{weights.origin}: {width} features, but XLM-R has a multiple of {_HEAD}")
    layers: list[Tensors] = []
    while f"{root}encoder.layer.{len(layers)}.output.dense.weight" in weights:
        layer: Tensors = {}
        for name in _DENSE:
            *place, last = name.split(".")
            part = layer
            for step in place:
                part = part.setdefault(step, {})
            part[last] = pair(f"encoder.layer.{len(layers)}.{name}")
        layers.append(layer)
    return {"embeddings": embeddings, "layers": layers}
