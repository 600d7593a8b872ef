"""What a model thinks of a translation, piece by piece: probabilities, alternatives, attention."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from transformer_jax.data.padding import pad
from transformer_jax.data.tokenizer import Tokenizer
from transformer_jax.models.config import ModelConfig
from transformer_jax.translation.text_batches import padded_length
from transformer_jax.translation.translator import Translator
from transformer_jax.viewing.attention import (
    check_lengths,
    config_of,
    effective_attention,
    teacher_forced,
)
from transformer_jax.vocabulary import BOS_ID, EOS_ID, PAD_ID, UNK_ID

#: Pieces that are looked at for each place.
_CANDIDATES = 64


@dataclass(frozen=True)
class Explanation:
    """Of one translation of S source and T target pieces, the latter with EOS."""

    source: list[str]  #: the pieces, `▁` for a space, "" for what is no text: language tokens
    target: list[str]
    log_probs_T: np.ndarray  #: float32, of each target piece given those before it, in nats
    looks_TS: np.ndarray  #: float32, how much each target piece uses each source piece


def explain(translator: Translator, source: Sequence[int], target: Sequence[int]) -> Explanation:
    """The probabilities of a translation, and where the model looks in the source.

    `looks_TS` is the mean of the cross-attention weights over layers and heads, without the
    source's EOS, on which heads rest that have nothing to read; each row sums to 1. If the
    cross-attention has no weights, it is the last layer's effective attention, which is slow.

    Args:
        translator: from `Run.translator`.
        source: ids without EOS.
        target: ids without EOS.

    Raises:
        UserError: more pieces than the model takes.
    """
    config, params, tokenizers = config_of(translator), translator.params, translator.tokenizers
    log_probs_T, _, weights_TS = _run(translator, source, target)
    rows, columns = len(target) + 1, len(source)
    if weights_TS is None:
        last = f"cross.{config.decoder.num_layers - 1}"
        pair = [*source, EOS_ID], [*target, EOS_ID]
        weights_TS = effective_attention(config, params, *pair, [last])[last]
    looks_TS = np.asarray(weights_TS)[:rows, :columns]
    return Explanation(
        source=_texts(tokenizers.source, source),
        target=[*_texts(tokenizers.target, target), "</s>"],
        log_probs_T=np.asarray(log_probs_T)[:rows],
        looks_TS=looks_TS / np.maximum(looks_TS.sum(axis=1, keepdims=True), 1e-30),
    )


def _texts(tokenizer: Tokenizer, ids: Sequence[int]) -> list[str]:
    pieces = zip(ids, tokenizer.pieces(ids), strict=True)
    return ["" if token in tokenizer.hidden else piece for token, piece in pieces]


def next_pieces(
    translator: Translator, source: Sequence[int], prefix: Sequence[int], count: int
) -> list[tuple[int, float]]:
    """(id, log-probability) of the most probable pieces after `prefix`, which are text.

    If the most probable one begins a word, all of them do.

    Args:
        translator: from `Run.translator`.
        source: ids without EOS.
        prefix: target ids.
        count: most that are returned.

    Raises:
        UserError: more pieces than the model takes.
    """
    _, (ids_TC, log_probs_TC), _ = _run(translator, source, prefix)
    ids_C, log_probs_C = (np.asarray(each)[len(prefix)] for each in (ids_TC, log_probs_TC))
    tokenizer = translator.tokenizers.target
    found = [
        (int(token), float(log_prob), piece.startswith("▁"))
        for token, log_prob, piece in zip(ids_C, log_probs_C, tokenizer.pieces(ids_C), strict=True)
        if np.isfinite(log_prob) and int(token) not in tokenizer.hidden
    ]
    return [
        (token, log_prob)
        for token, log_prob, begins_word in found
        if begins_word or not found[0][2]
    ][:count]


def _run(translator: Translator, source: Sequence[int], target: Sequence[int]) -> Any:
    config = config_of(translator)
    ids = [*source, EOS_ID], [*target, EOS_ID]
    check_lengths(config, *ids)
    # One length for both: few programs.
    length = padded_length(max(map(len, ids)), config.max_length)
    arrays = [array for each in ids for array in pad([each], 1, length)]
    return _explain(config, translator.params, *arrays)


@partial(jax.jit, static_argnums=0)
def _explain(
    config: ModelConfig,
    params: Any,
    source_1S: jax.Array,
    source_mask_1S: jax.Array,
    target_1T: jax.Array,
    target_mask_1T: jax.Array,
) -> tuple[jax.Array, tuple[jax.Array, jax.Array], jax.Array | None]:
    """Log-probabilities [T], (ids, log-probabilities) of candidates [T, C], weights [T, S]."""
    pair = source_1S, source_mask_1S, target_1T, target_mask_1T
    logits_1TV, collected = teacher_forced(config, params, *pair, mutable=["intermediates"])
    log_probs_TV = jax.nn.log_softmax(logits_1TV[0])
    log_probs_T = jnp.take_along_axis(log_probs_TV, target_1T[0][:, None], axis=1)[:, 0]
    never = jnp.array([PAD_ID, BOS_ID, EOS_ID, UNK_ID])
    log_probs_TC, ids_TC = jax.lax.top_k(
        log_probs_TV.at[:, never].set(-jnp.inf), min(_CANDIDATES, log_probs_TV.shape[1])
    )
    blocks = collected.get("intermediates", {}).get("decoder", {}).values()
    sown = [block["cross"] for block in blocks if "attention_weights" in block.get("cross", {})]
    weights = [each["attention_weights"][0][0].mean(axis=0) for each in sown]
    return log_probs_T, (ids_TC, log_probs_TC), sum(weights) / len(weights) if weights else None
