"""Measures the factors of activations that `model.quantize=int8` needs (`ops/int8_products.py`)."""

from collections.abc import Iterable, Mapping
from dataclasses import replace
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import linen as nn
from jax import Array

from transformer_jax.errors import UserError
from transformer_jax.layers.projections import Dense
from transformer_jax.models.api import Params, matrix_boxes, texts_of
from transformer_jax.models.config import ModelConfig
from transformer_jax.models.lora import NoAdapter
from transformer_jax.models.paths import MEASURED, from_paths
from transformer_jax.models.quantization import NoQuantization, is_multiplied
from transformer_jax.models.transformer import Transformer
from transformer_jax.ops.matrices import LARGEST


def with_alphas(
    config: ModelConfig, params: Params, batches: Iterable[Mapping[str, Any]]
) -> Params:
    """Parameters with the factors of activations in some batches.

    A factor is 127 / (mean + 1.1 standard deviations) of the largest |x| of each sentence. That is
    Mozilla's formula (`pipeline/quantize/extract_stats.py` of mozilla/translations), where it is
    the largest of each call of a product.

    Args:
        config: an adapter and a quantization in it are not used.
        params: of floats, without an adapter. Factors that they have are replaced.
        batches: each as for `api.loss`; a row without tokens is no sentence.

    Raises:
        UserError: a layer of the model cannot be measured, or there are no batches.
    """
    floats = {name: part for name, part in params.items() if name != MEASURED}
    measure = jax.jit(partial(_moments, config))
    each = [
        {path: np.asarray(x_3, np.float64) for path, x_3 in measure(floats, batch).items()}
        for batch in batches
    ]
    if not each:
        raise UserError("model.quantize=int8: there is no text to measure activations on")
    alphas = {}
    for path in each[0]:
        counts, means, variances = np.stack([moments[path] for moments in each], axis=1)
        mean = np.average(means, weights=counts)
        variance = np.average(variances + (means - mean) ** 2, weights=counts)
        expected = mean + 1.1 * variance**0.5
        alphas[path] = jnp.float32(LARGEST / expected if expected > 0 else LARGEST)
    return floats | {MEASURED: from_paths(alphas)}


def _moments(config: ModelConfig, params: Params, batch: Mapping[str, Any]) -> dict[str, Array]:
    """The number of sentences, and the mean and variance of their `largest_inputs`: [3]."""
    is_real_B = batch["source_mask"].any(1)
    count = is_real_B.sum().astype(jnp.float32)

    def moments(x_B: Array) -> Array:
        def mean(x_B: Array) -> Array:
            return jnp.where(is_real_B, x_B, 0.0).sum() / jnp.maximum(count, 1.0)

        center = mean(x_B)
        return jnp.stack([count, center, mean((x_B - center) ** 2)])

    return {path: moments(x_B) for path, x_B in largest_inputs(config, params, batch).items()}


def largest_inputs(
    config: ModelConfig, params: Params, batch: Mapping[str, Any]
) -> dict[str, Array]:
    """By the path of each matrix, max |x| of what it is multiplied with, in each sentence: [B].

    Args:
        config: an adapter and a quantization in it are not used.
        params: of floats, without an adapter.
        batch: as for `api.loss`.

    Raises:
        UserError: a layer of the model cannot be measured.
    """
    plain = replace(config, adapter=NoAdapter(), quantize=NoQuantization())
    model = Transformer(replace(plain, scan_layers=False, remat=False))
    tied = config.tie_embeddings in ("all", "decoder")
    logits = "target_embedding/table" if tied else "projection/kernel"
    found: dict[str, Array] = {}

    def note(path: str, x: Array, mask_BL: Array) -> None:
        if x.shape[:2] != mask_BL.shape:  # such as chunks of a sequence
            raise UserError(f"model.quantize=int8: cannot measure what {path} is multiplied with")
        # Heads are further axes.
        by_token_BL = jnp.abs(x.astype(jnp.float32)).reshape(*mask_BL.shape, -1).max(-1)
        largest_B = jnp.where(mask_BL, by_token_BL, 0.0).max(1)
        # A mixer that reads in both directions by one set of weights is called twice.
        found[path] = jnp.maximum(largest_B, found.get(path, 0.0))

    def watch(function: Any, args: Any, kwargs: Any, context: Any) -> Any:
        module, result = context.module, function(*args, **kwargs)
        if isinstance(module, Dense) and context.method_name in ("__call__", "split", "join"):
            path = "/".join(module.path)
            of_source = path.startswith("encoder/") or path.endswith(
                ("cross/heads/key", "cross/heads/value")
            )
            mask_BL = batch["source_mask" if of_source else "target_mask"]
            note(f"{path}/kernel", args[0], mask_BL)
        elif context.method_name == "_word_features":
            note(logits, result, batch["target_mask"])
        return result

    with nn.intercept_methods(watch):
        model.apply({"params": params}, texts_of(batch))
    boxes = matrix_boxes(model.config)
    if missing := sorted({path for path in boxes if is_multiplied(boxes[path])} - found.keys()):
        raise UserError(f"model.quantize=int8: cannot measure what {missing[0]} is multiplied with")
    return found
