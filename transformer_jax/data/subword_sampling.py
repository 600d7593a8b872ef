"""Subword regularisation: another segmentation of a sentence at each visit.

Kudo 2018, arXiv:1804.10959. The seed is a pure function of (seed, epoch, pair, side), and
the samples depend on nothing else, so that a resumed run sees what an undisturbed one sees.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

import numpy as np

from transformer_jax.data.tokenizer import Tokenizer, Tokenizers

if TYPE_CHECKING:
    from transformer_jax.data.id_corpus import IdCorpus


class SubwordSampler:
    """Samples segmentations for `make_batch(..., sampler=...)`.

    Needs a corpus made with `prepare_ids(..., sampling_alpha=alpha)`, which keeps the text
    and plans lengths with room for samples; a sample that is still too long for its batch's
    shape is replaced by the most probable segmentation.

    Args:
        tokenizers: of both languages.
        alpha: smoothing (unigram) or merge dropout probability (BPE), > 0.
        seed: of the samples.
    """

    def __init__(self, tokenizers: Tokenizers, alpha: float, seed: int = 0):
        if alpha <= 0:
            raise ValueError(f"alpha must be > 0, got {alpha}")
        self.tokenizers, self.alpha, self.seed = tokenizers, alpha, seed

    def __call__(
        self, corpus: IdCorpus, rows: np.ndarray, epoch: int
    ) -> tuple[list[Sequence[int]], list[Sequence[int]]]:
        """Sampled source and target ids of the pairs `rows`, without EOS."""
        seeds = _seeds(self.seed, epoch, rows)
        tokenizers = self.tokenizers
        return (
            self._sampled(tokenizers.source, map(corpus.source_text, rows), seeds[0]),
            self._sampled(tokenizers.target, map(corpus.target_text, rows), seeds[1]),
        )

    def _sampled(
        self, tokenizer: Tokenizer, texts: Iterable[str], seeds: np.ndarray
    ) -> list[Sequence[int]]:
        return [
            tokenizer.encode_sampled(text, int(seed), self.alpha)
            for text, seed in zip(texts, seeds, strict=True)
        ]


def _seeds(seed: int, epoch: int, rows: np.ndarray) -> np.ndarray:
    """[2, rows] well-mixed 32-bit seeds (SplitMix64 finaliser, Steele et al. 2014)."""
    first, second = np.random.SeedSequence([seed, epoch]).generate_state(2, np.uint64)
    with np.errstate(over="ignore"):
        x = np.asarray(rows, np.uint64) + np.stack([[first], [second]])
        x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return np.asarray((x ^ (x >> np.uint64(31))) & np.uint64(0xFFFFFFFF))
