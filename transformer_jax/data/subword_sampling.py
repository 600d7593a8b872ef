"""Subword regularisation: another segmentation of a sentence at each visit.

Kudo 2018, arXiv:1804.10959. The seed is a pure function of (seed, epoch, pair, side), so
that within a process the samples depend on nothing else. SentencePiece 0.2.3 draws some of
them differently in another process, so with sampling a resumed run is not bit-identical to
one that was never stopped.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from transformer_jax.data.tokenizer import Tokenizers
from transformer_jax.errors import UserError

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

    Raises:
        UserError: this SentencePiece cannot be seeded again, as those before 0.2.3.
    """

    def __init__(self, tokenizers: Tokenizers, alpha: float, seed: int = 0):
        if alpha <= 0:
            raise ValueError(f"alpha must be > 0, got {alpha}")
        self.tokenizers, self.alpha, self.seed = tokenizers, alpha, seed
        probe = "".join(map(chr, range(ord("a"), ord("z") + 1))) * 8
        first, second = tokenizers.source.encode_sampled_batch([probe, probe], [seed, seed], alpha)
        if first != second:  # a resumed run would see other samples, without a word
            raise UserError(
                "tokenizer.sampling_alpha needs sentencepiece 0.2.3 or later, whose random "
                "generator can be seeded again; upgrade it or set sampling_alpha to 0"
            )

    def __call__(
        self, corpus: IdCorpus, rows: np.ndarray, epoch: int
    ) -> tuple[list[Sequence[int]], list[Sequence[int]]]:
        """Sampled source and target ids of the pairs `rows`, without EOS."""
        seeds = _seeds(self.seed, epoch, rows)
        source = self.tokenizers.source.encode_sampled_batch(
            [corpus.source_text(i) for i in rows], seeds[0].tolist(), self.alpha
        )
        target = self.tokenizers.target.encode_sampled_batch(
            [corpus.target_text(i) for i in rows], seeds[1].tolist(), self.alpha
        )
        return list(source), list(target)


def _seeds(seed: int, epoch: int, rows: np.ndarray) -> np.ndarray:
    """[2, rows] well-mixed 32-bit seeds (SplitMix64 finaliser, Steele et al. 2014)."""
    first, second = np.random.SeedSequence([seed, epoch]).generate_state(2, np.uint64)
    with np.errstate(over="ignore"):
        x = np.asarray(rows, np.uint64) + np.stack([[first], [second]])
        x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return np.asarray((x ^ (x >> np.uint64(31))) & np.uint64(0xFFFFFFFF))
