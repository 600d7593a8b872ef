"""Which input tokens each layer of a model uses.

Two views of a sentence pair under teacher forcing, by layer:

`attention_weights`: the weights of softmax attention, one matrix a head.

`effective_attention`: for every mixer, with or without such weights, how much its output
at i depends on its input at j. The definition uses only the mixer's public calls, so a mixer
needs no code for it:

    E[i, j] = || d y_i / d x_j ||  /  sum_j' || d y_i / d x_j' ||

with y the mixer's output, x its input (for cross-attention the memory), and the
Frobenius norm of the D x D Jacobian, which is computed exactly, in float32.

This is the whole Jacobian. It includes every way in which x_j matters: through the values, and
through the scores, gates and normalisers. The part through the values alone is not defined for
every mixer: in a gated recurrence the same input is written into the state and sets the gates.
If the scores do not depend on the input, only the values remain, and for one head E is then the
weight matrix: an attention whose scores are only a position bias shows exactly softmax(bias).

`draw_attention` makes heat maps of a sentence pair in one call.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import linen as nn

from transformer_jax.errors import UserError
from transformer_jax.models.api import apply, mixer_paths, shift_right
from transformer_jax.models.config import ModelConfig
from transformer_jax.models.inside import attention
from transformer_jax.ops.padding import pad
from transformer_jax.translation.text_batches import padded_length
from transformer_jax.translation.translator import Translator
from transformer_jax.viewing.plots import plot_attention
from transformer_jax.vocabulary import EOS_ID

#: "encoder.0", "decoder.0", "cross.0", ... -> a matrix, or one for each head
Maps = dict[str, np.ndarray]


def attention_weights(
    config: ModelConfig, params: Any, source: list[int], target: list[int]
) -> Maps:
    """Attention weights of every layer for one sentence pair under teacher forcing.

    Args:
        config: of the model.
        params: its parameters.
        source: source ids, EOS included.
        target: target ids, EOS included.

    Returns:
        {"encoder.0": [H, S, S], "decoder.0": [H, T, T], "cross.0": [H, T, S], ...};
        each row sums to 1. Layers whose mixer has no attention weights are left out.
    """
    return teacher_forced(config, params, source, target)[1]


def teacher_forced(
    config: ModelConfig, params: Any, source: list[int], target: list[int]
) -> tuple[np.ndarray, Maps]:
    """Log-probabilities [T, V] of what follows each part of the target, and `attention_weights`."""
    # One length for both: few programs.
    length = padded_length(max(len(source), len(target)), config.max_length)
    pair = *pad([source], 1, length), *pad([target], 1, length)
    log_probs_TV, weights = _teacher_forced(config, params, *pair)
    maps = {}
    for name, weights_HTM in weights.items():
        rows = len(source if name.startswith("encoder") else target)
        columns = len(target if name.startswith("decoder") else source)
        maps[name] = np.asarray(weights_HTM)[:, :rows, :columns]
    return np.asarray(log_probs_TV)[: len(target)], maps


@partial(jax.jit, static_argnums=0)
def _teacher_forced(
    config: ModelConfig, params: Any, *pair: jax.Array
) -> tuple[jax.Array, dict[str, jax.Array]]:
    source_1S, mask_1S, target_1T, target_mask_1T = pair
    arrays = source_1S, mask_1S, shift_right(target_1T), target_mask_1T
    logits_1TV, weights = attention(config, params, *arrays)
    return jax.nn.log_softmax(logits_1TV[0]), {name: each[0] for name, each in weights.items()}


def effective_attention(
    config: ModelConfig,
    params: Any,
    source: list[int],
    target: list[int],
    layers: list[str] | None = None,
) -> Maps:
    """How much each output depends on each input, for every mixer; defined at the top of the file.

    Costs L * D backward passes of a layer, in batches of D.

    Args:
        config: of the model.
        params: its parameters.
        source: source ids, EOS included.
        target: target ids, EOS included.
        layers: names such as "decoder.1"; None means all.

    Returns:
        {"encoder.0": [S, S], "decoder.0": [T, T], "cross.0": [T, S], ...}; rows sum to 1
        (to 0 if an output depends on no input).
    """
    # The mixers' calls are intercepted, which needs each layer by itself.
    config = replace(config, remat=False, scan_layers=False)
    config = replace(config, dtype="float32", matmul_dtype="float32")
    paths, pair = mixer_paths(config), (jnp.asarray([source]), jnp.asarray([target]))
    found = {}
    for name in paths if layers is None else layers:
        norms_TM = np.asarray(_influences(config, paths[name], params, *pair))
        found[name] = norms_TM / np.maximum(norms_TM.sum(axis=-1, keepdims=True), 1e-30)
    return found


def attention_maps(config: ModelConfig, params: Any, source: list[int], target: list[int]) -> Maps:
    """The weights of every head if a layer has them, else its effective attention.

    Returns:
        As `attention_weights`, for every layer; effective attention is [1, ...].
    """
    maps = attention_weights(config, params, source, target)
    missing = [name for name in mixer_paths(config) if name not in maps]
    effective = effective_attention(config, params, source, target, missing)
    maps |= {name: effective_TM[None] for name, effective_TM in effective.items()}
    return {name: maps[name] for name in mixer_paths(config)}


def draw_attention(
    translator: Translator,
    source: str,
    target: str | None = None,
    path: str | Path = "heat.png",
    *,
    effective: bool = False,
) -> Path:
    """Draws the attention maps of a sentence pair. A row is a layer, and a panel is a head.

        translator = tj.open_run("runs/quickstart").translator()
        tj.draw_attention(translator, "My picture costs forty-five euros.", path="heat.png")

    Args:
        translator: from `Run.translator`.
        source: a sentence.
        target: its translation; None means the translator's own.
        path: where to write the PNG.
        effective: show the effective attention of every layer, even if it has weights.

    Returns:
        The path.

    Raises:
        UserError: a sentence is longer than the model takes, or there are several models.
    """
    tokenizers = translator.tokenizers
    if target is None:
        best = translator.n_best([source], 1)[0][0]
        target, target_ids = best.text, list(best.tokens[:-1])
    else:
        target_ids = tokenizers.target.encode(target)
    pair = pair_of(translator, tokenizers.source.encode(source), target_ids)
    if effective:
        maps = {name: e_TM[None] for name, e_TM in effective_attention(*pair).items()}
    else:
        maps = attention_maps(*pair)
    labels = (tokenizers.source.pieces(pair[2]), tokenizers.target.pieces(pair[3]))
    return plot_attention(maps, *labels, path, f"{source}\n{target}")


def pair_of(
    translator: Translator, source: Sequence[int], target: Sequence[int]
) -> tuple[ModelConfig, Any, list[int], list[int]]:
    """What the functions above take: the model, and ids without EOS with their EOS.

    Raises:
        UserError: there are several models; or a side is longer than the model takes.
    """
    if not translator.model.is_one:
        raise UserError("attention is drawn of one model, and this is an ensemble")
    config = translator.model.members[0]
    pair = [*source, EOS_ID], [*target, EOS_ID]
    for side, ids in zip(("source", "target"), pair, strict=True):
        if len(ids) > config.max_length:
            raise UserError(
                f"the {side} has {len(ids)} pieces, its end included, but the model takes only "
                f"{config.max_length} (model.max_length): shorten it"
            )
    return config, translator.params, *pair


@partial(jax.jit, static_argnums=(0, 1))
def _influences(
    config: ModelConfig, path: tuple[str, ...], params: Any, *pair: jax.Array
) -> jax.Array:
    """[T, M]: norms of the derivatives of each output of the mixer at `path` by each input.

    The mixer's output if `shift_LD` is added to its input comes from the whole model, in which the
    calls of this mixer are intercepted. Later layers do not affect it, so the compiler removes
    them.
    """
    source_1S, target_1T = pair
    masks = [jnp.ones_like(ids, bool) for ids in pair]

    def mixed(shift_LD: jax.Array) -> jax.Array:
        outputs: list[jax.Array] = []
        is_inside = False  # a mixer that calls its parent class's method counts once

        def intercept(call: Callable, args: tuple, kwargs: dict, context: Any) -> Any:
            nonlocal is_inside
            module, method = context.module, context.method_name
            if is_inside or module.path != path or method not in ("__call__", "project", "read"):
                return call(*args, **kwargs)
            if method != "read":
                args = (args[0] + shift_LD[None], *args[1:])
            is_inside = True
            result = call(*args, **kwargs)
            is_inside = False
            if method != "project":
                outputs.append(result[0])
            return result

        with nn.intercept_methods(intercept):
            apply(config, params, source_1S, masks[0], shift_right(target_1T), masks[1])
        return outputs[0]

    stack, _, role = path
    shifted = target_1T if (stack, role) == ("decoder", "mixer") else source_1S
    return _jacobian_norms(mixed, shifted.shape[1], config.d_model)


def _jacobian_norms(
    function: Callable[[jax.Array], jax.Array], length: int, width: int
) -> jax.Array:
    """[T, L]: Frobenius norms of d function(x)[i] / d x[j] at x = 0, x of [L, width]."""
    # Reverse mode, since a custom backward pass cannot be differentiated in forward mode.
    y_TD, pull_back = jax.vjp(function, jnp.zeros((length, width)))

    def of_output(i: jax.Array) -> jax.Array:
        def along(feature: jax.Array) -> jax.Array:
            return pull_back(jnp.zeros_like(y_TD).at[i, feature].set(1.0))[0]

        dx_DLD = jax.vmap(along)(jnp.arange(y_TD.shape[1]))
        return jnp.sqrt(jnp.square(dx_DLD).sum(axis=(0, 2)))

    return jax.lax.map(of_output, jnp.arange(y_TD.shape[0]))
