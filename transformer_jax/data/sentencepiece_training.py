"""Trains a SentencePiece model, reproducibly, with errors a user can act on.

Unigram: Kudo 2018 (arXiv:1804.10959). BPE: Sennrich et al. 2016 (arXiv:1508.07909).
"""

from __future__ import annotations

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


def train_model(config: TokenizerConfig, sentences: Iterable[str], side: str = "joint") -> bytes:
    """Trains a SentencePiece model; the same sentences give the same bytes on any machine.

    Args:
        config: kind, vocab_size, byte_fallback, character_coverage, max_training_sentences.
        sentences: the text; above the maximum a fixed random subset is used.
        side: "joint", "source" or "target", for error messages.

    Returns:
        the content of a SentencePiece `.model` file.

    Raises:
        UserError: no text, or a vocabulary the text cannot support (names the limit).
    """
    import sentencepiece

    sample = _reservoir(sentences, config.max_training_sentences)
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
    if found := re.search(r"Vocabulary size too high.*<= (\d+)", message):
        return (
            f"{key} is larger than the {side} text supports; "
            f"the maximum for this corpus is {found[1]}"
        )
    if found := re.search(r"smaller than required_chars\. \d+ vs (\d+)", message):
        return (
            f"{key} is too small for the {side} text: its characters, the 4 special ids "
            f"{'and 256 bytes ' if config.byte_fallback else ''}need at least {found[1]}; "
            "raise it or lower tokenizer.character_coverage"
        )
    return f"cannot train the {side} tokenizer: {message}"


def _reservoir(sentences: Iterable[str], limit: int) -> list[str]:
    """At most `limit` sentences, uniformly at random and always the same ones (algorithm R)."""
    if limit < 1:
        raise UserError(f"tokenizer.max_training_sentences must be at least 1, got {limit}")
    kept: list[str] = []
    random = np.random.Generator(np.random.PCG64(0))
    draws: list[float] = []
    for count, sentence in enumerate(sentences):
        if count < limit:
            kept.append(sentence)
            continue
        if not draws:
            draws = random.random(65536).tolist()
        place = int(draws.pop() * (count + 1))
        if place < limit:
            kept[place] = sentence
    return kept
