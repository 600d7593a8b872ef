"""A decoder small enough to enumerate: its logits depend on the whole history, through a hash."""

from collections.abc import Sequence
from typing import Any

import jax.numpy as jnp
import numpy as np
from jax import Array

from transformer_jax.decoding.base import Hypotheses
from transformer_jax.vocabulary import BOS_ID, EOS_ID, PAD_ID

NUM_HASHES = 509
VOCAB_SIZE = 6  # PAD, BOS, EOS and three pieces


def _next_hash(old: Any, token: Any, position: Any) -> Any:
    return (old * 31 + token * 7 + position * 3 + 1) % NUM_HASHES


class ToyDecoder:
    """Logits are rows of a random table, chosen by a hash of the sentence and its tokens so far."""

    vocab_size = VOCAB_SIZE

    def __init__(self, seed: int, eos_bias: float = 0.0, scale: float = 2.0) -> None:
        table = np.random.default_rng(seed).normal(size=(NUM_HASHES, VOCAB_SIZE)) * scale
        table[:, EOS_ID] += eos_bias
        self.table = table.astype(np.float32)

    def state(self, sentences: Any, num_hypotheses: int) -> Any:
        """The state before position 0 for sentences with these numbers."""
        hashes = jnp.asarray(sentences, jnp.int32)[:, None] * jnp.ones(num_hypotheses, jnp.int32)
        # A second leaf, of higher rank, that must be reordered with the first.
        return {"hash": hashes, "copy": jnp.tile(hashes[:, :, None, None], (1, 1, 2, 3))}

    def step(self, tokens_BZ: Array, position: Array, state: Any) -> Any:
        """See `decoding.base.Step`."""
        hashes = _next_hash(state["hash"], tokens_BZ, position)
        copies = _next_hash(state["copy"], tokens_BZ[:, :, None, None], position)
        logits = jnp.asarray(self.table)[hashes]
        # If the copy was reordered differently from the hash, the logits are wrong.
        differs = (copies[:, :, 1, 2] != hashes)[:, :, None]
        logits = jnp.where(differs, -1000.0 * jnp.arange(VOCAB_SIZE), logits)
        return logits, {"hash": hashes, "copy": copies}

    def log_prob(self, sentence: int, tokens: Sequence[int]) -> float:
        """log p(tokens) in float64, written without any of the code under test."""
        total = 0.0
        for position, token in enumerate(tokens):
            row = self.logits(sentence, tokens[:position])
            total += row[token] - np.log(np.exp(row).sum())
        return total

    def logits(self, sentence: int, tokens: Sequence[int]) -> np.ndarray:
        """The logits [V] after these tokens, in float64."""
        state = sentence
        for position, token in enumerate((BOS_ID, *tokens)):
            state = _next_hash(state, token, position)
        return self.table[state].astype(np.float64)

    @staticmethod
    def tokens_of(hypotheses: Hypotheses, sentence: int, place: int) -> tuple[int, ...]:
        """The tokens of one hypothesis; checks that nothing but PAD follows its end."""
        length = int(hypotheses.lengths[sentence, place])
        tokens = np.asarray(hypotheses.tokens[sentence, place])
        assert (tokens[length:] == PAD_ID).all()
        return tuple(int(token) for token in tokens[:length])
