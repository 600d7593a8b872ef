"""Subword regularisation: random segmentations of a text, the same in every process.

A sample is one of SentencePiece's `NBEST` most probable segmentations of the text, drawn in
proportion to P(segmentation) ** alpha (Kudo 2018, arXiv:1804.10959, section 3.3, with l = 64).
SentencePiece can draw too, but its generator cannot be seeded for one text: a resumed run would
differ from one that was not interrupted. Here a draw is a pure function of (seed, epoch, pair).
"""

from collections.abc import Sequence
from itertools import chain
from typing import NamedTuple

import numpy as np

from transformer_jax.data.tokenizer import SIDES, Side, Tokenizer
from transformer_jax.data.tokenizer_pair import Tokenizers
from transformer_jax.errors import UserError

#: l of Kudo 2018: samples are drawn from this many segmentations.
NBEST = 64

#: Bytes of segmentations that are kept. The 58,000 sentences of Multi30k take 200 MiB.
CACHED_BYTES = 1 << 29


class _Best(NamedTuple):
    """The most probable segmentations of a text, the best first."""

    ids: np.ndarray  # of all, one after the other
    ends_N: np.ndarray  # where those of each end
    log_probs_N: np.ndarray


class SubwordSampler:
    """Samples segmentations, of texts or for `make_batch(..., sampler=...)`.

    To find the best segmentations of a text takes nearly all the time. They are kept until they
    take `room`, and those that came first stay: each epoch asks for every text once, so a cache
    that forgets the oldest would never have the next one.

    Args:
        tokenizers: of both languages.
        alpha: smoothing exponent, > 0.
        seed: of the samples.
        room: bytes of segmentations that may be kept. It changes no sample.

    Raises:
        UserError: a tokenizer is not a unigram model.
    """

    def __init__(
        self, tokenizers: Tokenizers, alpha: float, seed: int = 0, room: int = CACHED_BYTES
    ) -> None:
        if alpha <= 0:
            raise ValueError(f"alpha must be > 0, got {alpha}")
        for side in SIDES:
            check_can_sample(getattr(tokenizers, side).kind)
        self.tokenizers, self.alpha, self.seed = tokenizers, alpha, seed
        self._room = room
        self._cache: dict[tuple[Tokenizer, str], _Best] = {}

    def __call__(
        self, side: Side, texts: Sequence[str], rows: np.ndarray, epoch: int
    ) -> list[list[int]]:
        """The ids of texts as they are segmented in an epoch, without EOS.

        Args:
            side: of the pairs.
            texts: that side of the pairs `rows`.
            rows: which pairs of the corpus.
            epoch: number of the epoch.
        """
        keys = ([self.seed, epoch, side == "target", row] for row in rows.tolist())
        return self.sample(side, texts, [np.random.default_rng(key).random() for key in keys])

    def sample(
        self, side: Side, texts: Sequence[str], uniform: Sequence[float] | np.ndarray
    ) -> list[list[int]]:
        """The ids of each text that belong to a number in [0, 1), without EOS."""
        tokenizer = getattr(self.tokenizers, side)
        return [
            _drawn(self._best(tokenizer, text), self.alpha, number)
            for text, number in zip(texts, uniform, strict=True)
        ]

    def _best(self, tokenizer: Tokenizer, text: str) -> _Best:
        if (cached := self._cache.get((tokenizer, text))) is not None:
            return cached
        segmentations, log_probs = tokenizer.nbest(text, NBEST)
        dtype = np.uint16 if tokenizer.vocab_size <= 1 << 16 else np.int32
        best = _Best(
            np.fromiter(chain.from_iterable(segmentations), dtype),
            np.cumsum([len(ids) for ids in segmentations], dtype=np.int32),
            np.array(log_probs),
        )
        used = 500 + 2 * len(text) + sum(array.nbytes for array in best)
        if used <= self._room:
            self._room -= used
            self._cache[tokenizer, text] = best
        return best


def check_can_sample(kind: str) -> None:
    """Refuses tokenizers that are not unigram models; what was measured says why.

    Raises:
        UserError: this kind is another one.
    """
    if kind != "unigram":
        raise UserError(
            f"tokenizer.sampling_alpha: segmentations of a {kind} tokenizer are not sampled: set "
            "tokenizer.kind=unigram, or tokenizer.sampling_alpha=none"
        )


def _drawn(best: _Best, alpha: float, uniform: float) -> list[int]:
    weights_N = np.exp(alpha * (best.log_probs_N - best.log_probs_N.max()))
    sums_N = np.cumsum(weights_N)
    place = int(np.searchsorted(sums_N[:-1], uniform * sums_N[-1], side="right"))
    start = best.ends_N[place - 1] if place else 0
    return list(best.ids[start : best.ends_N[place]].tolist())
