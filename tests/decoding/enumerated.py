"""All translations of the toy decoder: what a search is compared with."""

import itertools

from transformer_jax.testing.toy_decoder import VOCAB_SIZE, ToyDecoder
from transformer_jax.vocabulary import BOS_ID, EOS_ID, PAD_ID

PIECES = [token for token in range(VOCAB_SIZE) if token not in (PAD_ID, BOS_ID, EOS_ID)]


def all_hypotheses(
    toy: ToyDecoder, sentence: int, max_length: int, alpha: float, form: str = "gnmt"
) -> list[tuple[float, tuple[int, ...]]]:
    """Every sequence of at most `max_length` tokens: [(score, tokens)], best first."""
    hypotheses = []
    for length in range(1, max_length + 1):
        for pieces in itertools.product(PIECES, repeat=length - 1):
            tokens = (*pieces, EOS_ID)
            penalty = (length if form == "power" else (5 + length) / 6) ** alpha
            hypotheses.append((toy.log_prob(sentence, tokens) / penalty, tokens))
    return sorted(hypotheses, reverse=True)
