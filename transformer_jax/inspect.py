"""Looking inside: the attention weights behind one translation."""

from typing import Any

import jax.numpy as jnp
import numpy as np

from transformer_jax.models.api import shift_right
from transformer_jax.models.config import ModelConfig
from transformer_jax.models.transformer import Transformer


def attention_weights(
    config: ModelConfig, params: Any, source: list[int], target: list[int]
) -> dict[str, np.ndarray]:
    """Attention weights of every layer for one sentence pair under teacher forcing.

    Args:
        config: the model's.
        params: its parameters.
        source: source ids, EOS included.
        target: target ids, EOS included.

    Returns:
        {"encoder.0": [H, S, S], "decoder.0": [H, T, T], "cross.0": [H, T, S], ...};
        each row sums to 1. Layers whose mixer has no attention weights are missing.
    """
    source_1S, target_1T = jnp.asarray([source]), jnp.asarray([target])
    _, collected = Transformer(config).apply(
        {"params": params},
        source_1S,
        jnp.ones(source_1S.shape, bool),
        shift_right(target_1T),
        jnp.ones(target_1T.shape, bool),
        deterministic=True,
        mutable=["intermediates"],
    )
    found = {}
    layers = collected.get("intermediates", {})
    for stack in ("encoder", "decoder"):
        for block, modules in sorted(layers.get(stack, {}).items()):
            number = block.rpartition("_")[2]
            for module, sown in modules.items():
                name = f"cross.{number}" if module == "cross" else f"{stack}.{number}"
                if "attention_weights" in sown:
                    found[name] = np.asarray(sown["attention_weights"][0][0])
    return found
