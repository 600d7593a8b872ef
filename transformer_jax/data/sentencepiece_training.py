"""Trains a SentencePiece model, reproducibly, with errors a user can act on.

Unigram: Kudo 2018 (arXiv:1804.10959). BPE: Sennrich et al. 2016 (arXiv:1508.07909).
"""

import io
import re
from collections.abc import Iterable

import numpy as np

from transformer_jax.data.config import TokenizerConfig
from transformer_jax.errors import UserError
from transformer_jax.vocabulary import BOS_ID, EOS_ID, PAD_ID, UNK_ID

# Unigram training sums expected counts per thread, so the pieces depend on the number of
# threads (not on timing). A fixed number gives the same model on every machine.
_TRAINING_THREADS = 4


class Reservoir:
    """Keeps at most `limit` sentences, uniformly at random and always the same ones.

    Algorithm R of Vitter 1985.
    """

    def __init__(self, limit: int) -> None:
        self.sentences: list[str] = []
        self._limit, self._count = limit, 0
        self._random = np.random.Generator(np.random.PCG64(0))
        self._draws: list[float] = []

    def add(self, sentence: str) -> None:
        """Keeps the sentence, or not."""
        if self._count < self._limit:
            self.sentences.append(sentence)
        else:
            if not self._draws:
                self._draws = self._random.random(65536).tolist()
            place = int(self._draws.pop() * (self._count + 1))
            if place < self._limit:
                self.sentences[place] = sentence
        self._count += 1


def train_model(config: TokenizerConfig, sentences: Iterable[str], side: str = "joint") -> bytes:
    """Trains a SentencePiece model; the same sentences give the same bytes on any machine.

    Args:
        config: kind, vocab_size, byte_fallback, character_coverage.
        sentences: the text; all of it is held in memory (see `Reservoir`).
        side: "joint", "source" or "target", for error messages.

    Returns:
        the content of a SentencePiece `.model` file.

    Raises:
        UserError: no text, or a vocabulary the text cannot support (names the limit).
    """
    import sentencepiece

    sample = list(sentences)
    if not any(line.strip() for line in sample):
        raise UserError(f"no text to train the {side} tokenizer on: the corpus is empty")
    model = io.BytesIO()
    try:
        sentencepiece.SentencePieceTrainer.train(
            sentence_iterator=iter(sample),
            model_writer=model,
            model_type=config.kind,
            vocab_size=config.trained_vocab_size,
            byte_fallback=config.byte_fallback,
            character_coverage=config.character_coverage,
            normalization_rule_name="identity",
            pad_id=PAD_ID,
            bos_id=BOS_ID,
            eos_id=EOS_ID,
            unk_id=UNK_ID,
            num_threads=_TRAINING_THREADS,
            minloglevel=2,  # errors come as exceptions; the log would flood the terminal
        )
    except (RuntimeError, OSError, ValueError) as error:
        raise UserError(_explain(error, config, side)) from error
    return model.getvalue()


def _explain(error: Exception, config: TokenizerConfig, side: str) -> str:
    message = " ".join(str(error).split())
    key = f"tokenizer.vocab_size={config.trained_vocab_size}"
    if match := re.search(r"Vocabulary size too high.*<= (\d+)", message):
        return (
            f"{key} is larger than the {side} text supports; "
            f"the maximum for this corpus is {match[1]}"
        )
    if match := re.search(r"smaller than required_chars\. \d+ vs (\d+)", message):
        return (
            f"{key} is too small for the {side} text: its characters, the 4 special ids "
            f"{'and 256 bytes ' if config.byte_fallback else ''}need at least {match[1]}; "
            "raise it or lower tokenizer.character_coverage"
        )
    return f"cannot train the {side} tokenizer: {message}"
