"""What a model does inside: embeddings, the outputs of its blocks, and the weights of attention."""

import re
from typing import Any

import jax.numpy as jnp
import numpy as np
from flax import linen as nn
from flax.traverse_util import flatten_dict
from jax import Array

from transformer_jax.errors import UserError
from transformer_jax.mixers.full_attention import FullCross
from transformer_jax.mixers.registry import CROSS_MIXERS
from transformer_jax.models.api import AnyArray, Params, mixer_paths, run_model
from transformer_jax.models.config import ModelConfig
from transformer_jax.models.inputs import Texts, check_text, check_texts
from transformer_jax.settings.variants import kind_of

#: The path of a stack or of one of its blocks.
_BLOCK = re.compile(r"(encoder|decoder)(/blocks_\d+)?")


def embed(
    config: ModelConfig, params: Params, source: AnyArray, target_in: AnyArray
) -> tuple[Array, Array]:
    """The word embeddings that `apply` makes of ids, [B, S, E] and [B, T, E].

    The functions that read texts take them in place of ids, so a gradient by a model's inputs is
    one `jax.grad`.

    Raises:
        UserError: as `apply`.
    """
    for name, ids in (("source", source), ("target", target_in)):
        check_text(config, name, ids, np.ones(ids.shape, bool))
    return run_model(config, params, source, target_in, method="embed")


def hidden_states(
    config: ModelConfig,
    params: Params,
    source: AnyArray,
    source_mask_BS: AnyArray,
    target_in: AnyArray,
    target_mask_BT: AnyArray,
) -> tuple[Array, dict[str, Array]]:
    """As `apply`, and what each block and each stack returns.

    The arrays are those of `apply`.

    Returns:
        Logits [B, T, V], and {"encoder.0": [B, S, D], ..., "encoder": [B, S, D], "decoder.0":
        [B, T, D], ..., "decoder": [B, T, D]}; a stack's own output is after its last norm.
    """

    def is_watched(module: nn.Module, method: str) -> bool:
        return method == "__call__" and bool(_BLOCK.fullmatch("/".join(module.path)))

    texts = Texts(source, source_mask_BS, target_in, target_mask_BT)
    logits_BTV, sown = _run_watched(config, params, texts, capture_intermediates=is_watched)
    outputs = {"/".join(path): values[0] for (*path, name), values in sown.items()}
    return logits_BTV, {
        path.replace("/blocks_", "."): y for path, y in outputs.items() if _BLOCK.fullmatch(path)
    }


def attention(
    config: ModelConfig,
    params: Params,
    source: AnyArray,
    source_mask_BS: AnyArray,
    target_in: AnyArray,
    target_mask_BT: AnyArray,
) -> tuple[Array, dict[str, Array]]:
    """As `apply`, and by `mixer_paths` the attention weights of the layers that have some.

    Returns:
        Logits [B, T, V], and {"encoder.0": [B, H, S, S], "cross.0": [B, H, T, S], ...}. What is
        not used is not computed, within one jitted function.

    Raises:
        UserError: as `apply`.
    """
    texts = Texts(source, source_mask_BS, target_in, target_mask_BT)
    logits_BTV, sown = _run_watched(config, params, texts)
    places = {name: (*path, "attention_weights") for name, path in mixer_paths(config).items()}
    return logits_BTV, {name: sown[at][0] for name, at in places.items() if at in sown}


def _run_watched(
    config: ModelConfig, params: Params, texts: Texts, **options: Any
) -> tuple[Array, dict[tuple[str, ...], Any]]:
    """The logits, and by their paths the tuples of what modules sowed."""
    check_texts(config, texts)
    logits_BTV, collected = run_model(config, params, texts, mutable=["intermediates"], **options)
    return logits_BTV, flatten_dict(collected.get("intermediates", {}))


def check_alignment(config: ModelConfig) -> None:
    """Raises UserError where `alignment` has nothing to read."""
    if not isinstance(config.cross, FullCross):
        raise UserError(
            f"alignments are read from the weights of cross-attention, and model.cross="
            f"{kind_of(config.cross, CROSS_MIXERS)} has none; a model with model.cross=full has"
        )


def alignment(config: ModelConfig, params: Params, *arrays: AnyArray) -> Array:
    """How much each target piece uses each source piece, [B, T, S] float32; rows sum to 1.

    It is `alignment_head` of the last layer's cross-attention, or the mean over its heads. The
    arrays are those of `apply`; row t belongs to the piece that is predicted there.

    Raises:
        UserError: the cross-attention has no weights.
    """
    check_alignment(config)
    _, weights = attention(config, params, *arrays)
    weights_BHTS = weights[f"cross.{config.decoder.num_layers - 1}"].astype(jnp.float32)
    head = getattr(config.cross, "alignment_head", None)
    return weights_BHTS.mean(axis=1) if head is None else weights_BHTS[:, head]
