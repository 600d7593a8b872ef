"""The models of COMET-22 and CometKiwi and their formulas; see `comet.py`."""

import functools
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from flax import linen as nn
from jax import Array
from scipy.special import softmax

from transformer_jax.errors import UserError, as_user_error
from transformer_jax.layers.feed_forward import Mlp
from transformer_jax.layers.norms import LayerNorm
from transformer_jax.metrics.base import Lines
from transformer_jax.metrics.batches import in_batches
from transformer_jax.models.config import ModelConfig, StackConfig
from transformer_jax.models.paths import from_paths
from transformer_jax.models.stack import Stack
from transformer_jax.positions.none import NoPosition
from transformer_jax.weights.sentencepiece_model import open_model
from transformer_jax.weights.settings import Settings, parse_yaml
from transformer_jax.weights.torch_files import read_torch
from transformer_jax.weights.weights import Weights

#: `<s>`, `<pad>`, `</s>` and `<unk>` of XLM-R; other pieces have SentencePiece's id plus 1.
BEGIN, PADDING, END, UNKNOWN = 0, 1, 2, 3

_MOST = 512  # ids of a text
_HEAD = 64  # features of an attention head, in both sizes of XLM-R

Tensors = dict[str, Any]

#: The parts of a layer of ours, and their names in XLM-R.
_LAYER = {
    **{f"mixer/heads/{name}": f"attention.self.{name}" for name in ("query", "key", "value")},
    "mixer/heads/out": "attention.output.dense",
    "mixer_residual/norm": "attention.output.LayerNorm",
    "feed_forward/up": "intermediate.dense",
    "feed_forward/down": "output.dense",
    "feed_forward_residual/norm": "output.LayerNorm",
}


class Form(NamedTuple):
    """What `hparams.yaml` says of a kind of models."""

    kind: str  #: `class_identifier`
    needed: dict[str, Any]  #: other keys


WITH_REFERENCE = Form("regression_metric", {"layer": "mix", "pool": "avg"})
WITHOUT = Form("unified_metric", {"sent_layer": "mix", "input_segments": ["mt", "src"]})


class CometModel:
    """A model that is loaded; as `Judge`."""

    def __init__(self, folder: str, title: str, *, needs_reference: bool) -> None:
        self._needs_reference, path = needs_reference, Path(folder)
        settings = _settings(path, WITH_REFERENCE if needs_reference else WITHOUT, title)
        origin = "which COMET has from XLM-R; copy it from FacebookAI/xlm-roberta-large"
        _, self._processor = open_model(path, ["sentencepiece.bpe.model"], origin)
        checkpoint = path / "checkpoints" / "model.ckpt"
        if not checkpoint.is_file():
            raise UserError(f"{checkpoint}: no such file; it has the weights of the metric")
        weights = Weights(str(checkpoint), read_torch(checkpoint, within="state_dict"))
        self._mix = _mix(weights, settings)
        self._regressor = _regressor(weights, len(settings.get("hidden_sizes", list)))
        self._stack, encoder = _encoder(weights, len(self._mix) - 1)
        weights.check_all_taken(_IGNORED)
        self._encoder = jax.device_put(encoder)

    def __call__(self, sources: Lines, translations: Lines, references: Lines) -> np.ndarray:
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

    def _ids(self, texts: Lines) -> list[list[int]]:
        """The ids of each text, as many as fit between `<s>` and `</s>`."""
        pieces = self._processor.encode(list(texts), num_threads=-1)
        unknown = self._processor.unk_id()
        return [[UNKNOWN if i == unknown else i + 1 for i in row[: _MOST - 4]] for row in pieces]

    def _embed(self, rows: list[list[int]], *, at_first: bool) -> np.ndarray:
        """The mix of layers [N, D]: at the first id of each row, or its mean over all."""
        return in_batches(
            rows, functools.partial(_embed, self._stack, self._encoder, self._mix, at_first)
        )

    def _score(self, features_NF: np.ndarray) -> np.ndarray:
        if not len(features_NF):
            return np.zeros(0, np.float32)
        *hidden, (kernel, bias) = self._regressor
        for each in hidden:
            features_NF = np.tanh(features_NF @ each[0].T + each[1])
        return (features_NF @ kernel.T + bias)[:, 0]


@functools.partial(jax.jit, static_argnums=(0, 3))
def _embed(
    stack: Stack, encoder: Tensors, mix_L: Array, at_first: bool, ids_BS: Any, mask_BS: Any
) -> Array:
    words_BSD = encoder["words"][ids_BS] + encoder["positions"][: ids_BS.shape[1]]
    options: Any = {"mutable": ["intermediates"], "capture_intermediates": _is_layer}
    _, sown = stack.apply({"params": encoder["stack"]}, words_BSD, mask_BS, **options)
    names = ["first_norm", *(f"blocks_{number}" for number in range(len(mix_L) - 1))]
    layers = [sown["intermediates"][name]["__call__"][0] for name in names]
    mixed_BSD = sum(weight * x_BSD for weight, x_BSD in zip(mix_L, layers, strict=True))
    if at_first:
        return mixed_BSD[:, 0]
    kept_BSD = jnp.where(mask_BS[..., None], mixed_BSD, 0.0)
    return kept_BSD.sum(axis=1) / jnp.maximum(mask_BS.sum(axis=1), 1)[:, None]


def _is_layer(module: nn.Module, method: str) -> bool:
    return method == "__call__" and len(module.path) == 1


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


def _settings(path: Path, form: Form, title: str) -> Settings:
    """The keys of `hparams.yaml`, checked."""
    file = path / "hparams.yaml"
    advice = "; expected the downloaded files of a COMET model"
    with as_user_error(f"{file}: cannot be read", OSError, then=advice):
        settings = Settings(str(file), parse_yaml(str(file), file.read_bytes()))
    if (kind := settings.get("class_identifier", str)) != form.kind:
        raise UserError(f"{file}: a {kind}, but {title} is a {form.kind}")
    only = {"encoder_model": "XLM-RoBERTa", "activations": "Tanh", "final_activation": None}
    settings.need(only | form.needed)
    if settings.get("layer_norm", bool, True):  # COMET's own default
        raise UserError(f"{file}: layer_norm=True cannot be expressed; only False")
    return settings


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


def _encoder(weights: Weights, num_layers: int) -> tuple[Stack, Tensors]:
    """XLM-R as an encoder of ours, after its embeddings, and all parameters."""
    root, flat = "encoder.model.", dict[str, np.ndarray]()

    def take(path: str, name: str) -> None:
        kind = "scale" if path.endswith("norm") else "kernel"
        flat[f"{path}/{kind}"] = weights.take(f"{root}{name}.weight").T
        flat[f"{path}/bias"] = weights.take(f"{root}{name}.bias")

    take("first_norm", "embeddings.LayerNorm")
    for number in range(num_layers):
        for path, name in _LAYER.items():
            take(f"blocks_{number}/{path}", f"encoder.layer.{number}.{name}")
        # It adds the same number to all scores of a query: no effect.
        del flat[f"blocks_{number}/mixer/heads/key/bias"]
    words_VD, positions, types = (
        weights.take(f"{root}embeddings.{name}_embeddings.weight")
        for name in ("word", "position", "token_type")
    )
    width = words_VD.shape[1]
    if width % _HEAD:
        raise UserError(f"{weights.origin}: {width} features, but XLM-R has a multiple of {_HEAD}")
    config = ModelConfig(
        d_model=width,
        d_ff=len(flat["blocks_0/feed_forward/up/bias"]),
        num_heads=width // _HEAD,
        encoder=StackConfig(num_layers=num_layers, position=NoPosition()),
        norm=LayerNorm(epsilon=1e-5),
        norm_placement="post",
        feed_forward=Mlp(activation="gelu"),
        embedding_norm=True,
    )
    # Positions count from the id of padding, and padding has its own.
    embeddings = {"words": words_VD, "positions": positions[PADDING + 1 :] + types[0]}
    return Stack(config, causal=False), embeddings | {"stack": from_paths(flat)}
