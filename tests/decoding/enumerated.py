"""All translations of the toy decoder: what a search is compared with."""

import itertools
from collections.abc import Callable, Sequence

import numpy as np
import pytest

from transformer_jax.decoding.base import Hypotheses
from transformer_jax.testing.toy_decoder import VOCAB_SIZE, ToyDecoder
from transformer_jax.vocabulary import BOS_ID, EOS_ID, PAD_ID

PIECES = [token for token in range(VOCAB_SIZE) if token not in (PAD_ID, BOS_ID, EOS_ID)]


def all_hypotheses(
    log_prob: Callable[[Sequence[int]], float], max_length: int, alpha: float, form: str = "gnmt"
) -> list[tuple[float, tuple[int, ...]]]:
    """Every possible sequence of at most `max_length` tokens: [(score, tokens)], best first."""
    hypotheses = []
    for length in range(1, max_length + 1):
        penalty = (length if form == "power" else (5 + length) / 6) ** alpha
        for pieces in itertools.product(PIECES, repeat=length - 1):
            tokens = (*pieces, EOS_ID)
            hypotheses.append((log_prob(tokens) / penalty, tokens))
    return sorted((each for each in hypotheses if np.isfinite(each[0])), reverse=True)


def assert_best(
    toy: ToyDecoder, found: Hypotheses, row: int, expected: list[tuple[float, tuple[int, ...]]]
) -> None:
    """A sentence's places have the best of the expected hypotheses, as many as there are."""
    places = found.lengths.shape[1]
    assert int((found.lengths[row] > 0).sum()) == min(places, len(expected))
    for place, (score, tokens) in enumerate(expected[:places]):
        assert toy.tokens_of(found, row, place) == tokens
        assert found.scores[row, place] == pytest.approx(score, rel=1e-5, abs=1e-5)
