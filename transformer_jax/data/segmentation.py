"""Subword regularisation: random segmentations of a text, the same in every process.

SentencePiece's own sampling cannot be seeded reproducibly: with the same seed, another process
draws other samples, and a resumed run would differ from an uninterrupted one. Therefore this
module draws the samples, from a seed that is a pure function of (seed, epoch, pair, side).

- unigram: among the `NBEST` most probable segmentations, proportionally to
  P(segmentation) ** alpha (Kudo 2018, arXiv:1804.10959, section 3.3, with l = 64). Those of a text
  are found from those of its words, for many texts at a time.
- BPE: each time a merge is considered, it is dropped with probability alpha (Provilkov,
  Emelianenko and Voita 2020, arXiv:1910.13267); alpha = 0 is the model's own segmentation. As in
  SentencePiece, a dropped pair stays apart until one of its two pieces is merged with another; in
  the paper's algorithm 1 all pairs are drawn again after each merge.
"""

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from transformer_jax.data.bpe_dropout import BpeDropout
from transformer_jax.data.unigram_sampling import BestSegmentations
from transformer_jax.data.words import mixed

if TYPE_CHECKING:
    from transformer_jax.data.corpus import IdCorpus
    from transformer_jax.data.tokenizer import Tokenizers

#: (texts, a seed of each, alpha) -> ids of each.
Segmenter = Callable[[Sequence[str], Sequence[int] | np.ndarray, float], list[list[int]]]


def segmenter(processor: Any) -> Segmenter:
    """The function that samples with this `SentencePieceProcessor`'s kind of model."""
    scores = np.array([processor.get_score(i) for i in range(processor.vocab_size())])
    if is_bpe(processor):
        return BpeDropout(processor, scores).sample
    return BestSegmentations(processor, scores).sample


def is_bpe(processor: Any) -> bool:
    """Whether the model of this `SentencePieceProcessor` merges pairs."""
    try:
        processor.nbest_encode_as_ids("a", 1)
    except RuntimeError:  # raised for BPE models
        return True
    return False


class SubwordSampler:
    """Samples segmentations for `make_batch(..., sampler=...)`.

    It needs a corpus made with `prepare_ids(..., sampling_alpha=alpha)`, which keeps the text
    and plans lengths with room for samples. A sample that is still too long for its batch's
    shape is replaced by the most probable segmentation.

    Args:
        tokenizers: of both languages.
        alpha: smoothing (unigram) or merge dropout probability (BPE), > 0.
        seed: of the samples.
    """

    def __init__(self, tokenizers: "Tokenizers", alpha: float, seed: int = 0):
        if alpha <= 0:
            raise ValueError(f"alpha must be > 0, got {alpha}")
        self.tokenizers, self.alpha, self.seed = tokenizers, alpha, seed

    def __call__(
        self, corpus: "IdCorpus", rows: np.ndarray, epoch: int
    ) -> tuple[list[Sequence[int]], list[Sequence[int]]]:
        """Sampled source and target ids of the pairs `rows`, without EOS."""
        samples = []
        for side, seeds in zip(("source", "target"), _seeds(self.seed, epoch, rows), strict=True):
            tokenizer, sentences = getattr(self.tokenizers, side), getattr(corpus, side)
            texts = [sentences.text(row) for row in rows]
            samples.append(tokenizer.sample_batch(texts, seeds, self.alpha))
        return samples[0], samples[1]


def _seeds(seed: int, epoch: int, rows: np.ndarray) -> np.ndarray:
    """[2, rows] well-mixed 32-bit seeds."""
    first, second = np.random.SeedSequence([seed, epoch]).generate_state(2, np.uint64)
    with np.errstate(over="ignore"):
        x = np.asarray(rows, np.uint64) + np.stack([[first], [second]])
    return np.asarray(mixed(x) & np.uint64(0xFFFFFFFF))
