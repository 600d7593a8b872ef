"""Puts options of a model into its weights, where a format has one value of the option alone."""

import math
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np

from transformer_jax.errors import UserError
from transformer_jax.formats.exporter import differences, texts
from transformer_jax.models.api import Params, abstract_params, logical_axes
from transformer_jax.models.config import ModelConfig, layer_mixers, mixer_context
from transformer_jax.models.paths import by_path, from_paths
from transformer_jax.positions.sinusoidal import Sinusoidal
from transformer_jax.positions.t5 import T5


class Folded(NamedTuple):
    """A model whose options are those of another wherever its weights can make up for it."""

    model: ModelConfig
    factors: dict[str, float]  #: parameter -> what it is multiplied by
    is_reordered: bool  #: whether the features are, from sines and cosines in turn to two halves


def unlike(ours: ModelConfig, theirs: ModelConfig) -> list[str]:
    """The keys of the options of `theirs` that `ours` has not and that no weights make up for."""
    return differences(folded(ours, theirs).model, theirs)


def check_like(ours: ModelConfig, theirs: ModelConfig, name: str) -> None:
    """Refuses a model that weights do not make one of the options of another.

    Args:
        ours: the model.
        theirs: the nearest one that a format has.
        name: the format's, for the message.

    Raises:
        UserError: names the options.
    """
    if keys := unlike(ours, theirs):
        mine, wanted = (
            " ".join(f"{key}={texts(model)[key]}" for key in keys) for model in (ours, theirs)
        )
        raise UserError(
            f"{mine}: {name} cannot express it; it needs a model trained with {wanted}; the format "
            "safetensors takes every model"
        )


def folded(ours: ModelConfig, theirs: ModelConfig) -> Folded:
    """`ours` with the options of `theirs` that go into the weights."""
    factors: dict[str, float] = {}
    default_scale = mixer_context(ours, causal=False).head_dim ** -0.5
    # Whether the positions are the same, but for the order of the features.
    halves = Sinusoidal(form="halves")
    is_reordered = ours.d_model % 2 == 0 and all(
        mine.position == replace(halves, form="interleaved") and other.position == halves
        for mine, other in ((ours.encoder, theirs.encoder), (ours.decoder, theirs.decoder))
    )

    def biased(mine: Any, other: Any) -> Any:
        if type(mine) is not type(other) or not hasattr(mine, "use_bias"):
            return mine
        return replace(mine, use_bias=mine.use_bias or other.use_bias)

    def attention(mine: Any, other: Any, *places: str) -> Any:
        if type(mine) is not type(other) or not hasattr(mine, "score_scale"):
            return mine
        factor = (mine.score_scale or default_scale) / (other.score_scale or default_scale)
        for place in places:
            factors[f"{place}/heads/query/kernel"] = factors[f"{place}/heads/query/bias"] = factor
        return replace(biased(mine, other), score_scale=other.score_scale)

    def stack(side: str) -> Any:
        mine, other = getattr(ours, side), getattr(theirs, side)
        mixers = [
            attention(mixer, other.mixers[0], f"{side}/blocks_{i}/mixer")
            for i, mixer in enumerate(layer_mixers(mine))
        ]
        position = other.position if is_reordered else mine.position
        if isinstance(position, T5) and isinstance(other.position, T5):
            multiplier = other.position.multiplier
            factors[f"{side}/position/table"] = position.multiplier / multiplier
            position = replace(position, multiplier=multiplier)
        return replace(mine, mixers=tuple(dict.fromkeys(mixers)), position=position)

    blocks = [f"decoder/blocks_{i}/cross" for i in range(ours.decoder.num_layers)]
    widths = [mixer_context(config, causal=False).head_dim for config in (ours, theirs)]
    model = replace(
        ours,
        encoder=stack("encoder"),
        decoder=stack("decoder"),
        cross=attention(ours.cross, theirs.cross, *blocks),
        norm=biased(ours.norm, theirs.norm),
        feed_forward=biased(ours.feed_forward, theirs.feed_forward),
        output_bias=ours.output_bias or theirs.output_bias,
        head_dim=theirs.head_dim if widths[0] == widths[1] else ours.head_dim,
    )
    mine, other = (config.embedding_scale or config.d_model**0.5 for config in (ours, theirs))
    embedding, logits = mine / other, ours.logit_scale / theirs.logit_scale
    # A table that is also the projection has one factor for both.
    if ours.tie_embeddings not in ("all", "decoder") or math.isclose(embedding, logits):
        scales = theirs.embedding_scale, theirs.logit_scale
        model = replace(model, embedding_scale=scales[0], logit_scale=scales[1])
        factors |= {f"{side}_embedding/table": embedding for side in ("source", "target")}
        factors["projection/kernel"] = logits
    return Folded(model, factors, is_reordered)


def converted(ours: ModelConfig, theirs: ModelConfig, params: Params) -> Params:
    """The parameters of `theirs` that give the outputs of `ours`, in float32."""
    flat = {path: np.asarray(leaf, np.float32) for path, leaf in by_path(params).items()}
    _, factors, is_reordered = folded(ours, theirs)
    if is_reordered:
        axes = by_path(logical_axes(ours))
        order_D = np.r_[0 : ours.d_model : 2, 1 : ours.d_model : 2]
        for path in flat:
            for axis, name in enumerate(axes[path]):
                if name == "embed":
                    flat[path] = np.take(flat[path], order_D, axis)
    for path, factor in factors.items():
        if path in flat and factor != 1:
            flat[path] = flat[path] * np.float32(factor)
    shapes = {path: leaf.shape for path, leaf in by_path(abstract_params(theirs)).items()}
    missing = shapes.keys() - flat.keys()
    assert flat.keys() <= shapes.keys() and all(path.endswith("/bias") for path in missing)
    return from_paths({path: flat.get(path, np.zeros(shapes[path])) for path in shapes})
