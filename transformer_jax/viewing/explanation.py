"""What a model thinks of a translation, piece by piece: probabilities, alternatives, attention."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from transformer_jax.data.tokenizer import Tokenizer
from transformer_jax.translation.translator import Translator
from transformer_jax.viewing.attention import effective_attention, pair_of, teacher_forced
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
    pair = pair_of(translator, source, target)
    log_probs_TV, maps = teacher_forced(*pair)
    crosses = [w_HTS.mean(axis=0) for name, w_HTS in maps.items() if name.startswith("cross.")]
    if not crosses:
        last = f"cross.{pair[0].decoder.num_layers - 1}"
        crosses = [effective_attention(*pair, [last])[last]]
    looks_TS = np.mean(crosses, axis=0)[:, :-1]
    tokenizers = translator.tokenizers
    return Explanation(
        source=_texts(tokenizers.source, source),
        target=[*_texts(tokenizers.target, target), "</s>"],
        log_probs_T=log_probs_TV[np.arange(len(target) + 1), pair[3]],
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
    log_probs_TV, _ = teacher_forced(*pair_of(translator, source, prefix))
    log_probs_V, tokenizer = log_probs_TV[-1], translator.tokenizers.target
    order = np.argsort(-log_probs_V, kind="stable")
    never = [PAD_ID, BOS_ID, EOS_ID, UNK_ID, *tokenizer.hidden]
    candidates = order[~np.isin(order, never)][:_CANDIDATES].tolist()
    begin_word = [piece.startswith("▁") for piece in tokenizer.pieces(candidates)]
    return [
        (token, float(log_probs_V[token]))
        for token, begins in zip(candidates, begin_word, strict=True)
        if begins or not begin_word[0]
    ][:count]
