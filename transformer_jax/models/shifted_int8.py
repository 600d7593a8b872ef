"""A model whose products are those of Bergamot's engine in int8 (`ops/shifted_int8.py`).

What a product rounds its input with is one number for each matrix, measured on sentences.
"""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import linen as nn

from transformer_jax.layers.projections import Dense
from transformer_jax.models.api import Params, matrix_paths, shift_right
from transformer_jax.models.config import ModelConfig
from transformer_jax.models.paths import by_path, from_paths
from transformer_jax.models.transformer import Transformer
from transformer_jax.ops.matrices import LARGEST
from transformer_jax.ops.shifted_int8 import shifted


def largest_inputs(
    config: ModelConfig, params: Params, batch: Mapping[str, Any]
) -> dict[str, jax.Array]:
    """By the path of each matrix, max |x| of what it is multiplied with, in each sentence: [B].

    A table that is not multiplied with anything is not among them.

    Args:
        config: without an adapter.
        params: of floats.
        batch: `source`, `source_mask`, `target`, `target_mask`, as for the loss.
    """
    model = Transformer(replace(config, scan_layers=False, remat=False))
    tied = config.tie_embeddings in ("all", "decoder")
    logits = "target_embedding/table" if tied else "projection/kernel"
    found: dict[str, jax.Array] = {}

    def note(path: str, x: jax.Array, mask_BL: jax.Array) -> None:
        # Heads are further axes.
        by_token_BL = jnp.abs(x.astype(jnp.float32)).reshape(*mask_BL.shape, -1).max(-1)
        found[path] = jnp.where(mask_BL, by_token_BL, 0.0).max(1)

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

    arrays = batch["source"], batch["source_mask"], shift_right(batch["target"])
    with nn.intercept_methods(watch):
        model.apply({"params": params}, *arrays, batch["target_mask"])
    return found


def alphas(largest: Mapping[str, np.ndarray]) -> dict[str, float]:
    """127 / (mean + 1.1 standard deviations) of `largest_inputs` of many sentences, as Mozilla's.

    Their `pipeline/quantize/extract_stats.py` takes the same of each call of a product.
    """
    return {
        path: float(np.float32(LARGEST / (np.mean(x) + 1.1 * np.std(x))))
        for path, x in largest.items()
    }


def in_shifted_int8(config: ModelConfig, params: Params, by_matrix: Mapping[str, float]) -> Params:
    """Parameters with which decoding computes as the engine does; other functions take them too.

    Args:
        config: without an adapter.
        params: of floats.
        by_matrix: from `alphas`.
    """
    matrices = matrix_paths(config)
    return from_paths(
        {
            path: shifted(jnp.asarray(w), by_matrix.get(path, 1.0)) if path in matrices else w
            for path, w in by_path(params).items()
        }
    )
