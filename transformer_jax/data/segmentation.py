"""Subword regularisation: random segmentations of a text, the same in every process.

SentencePiece's own sampling cannot be seeded reproducibly: with the same seed, another process
draws other samples, and a resumed run would differ from an uninterrupted one. Therefore this
module draws the samples, from a seed that is a pure function of (seed, epoch, pair, side).

- unigram: among the `NBEST` most probable segmentations, proportionally to
  P(segmentation) ** alpha (Kudo 2018, arXiv:1804.10959, section 3.3, with l = 64).
- BPE: each time a merge is considered, it is dropped with probability alpha (Provilkov,
  Emelianenko and Voita 2020, arXiv:1910.13267); alpha = 0 is the model's own segmentation. As in
  SentencePiece, a dropped pair stays apart until one of its two pieces is merged with another; in
  the paper's algorithm 1 all pairs are drawn again after each merge.
"""

import heapq
import math
import re
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from transformer_jax.errors import UserError

if TYPE_CHECKING:
    from transformer_jax.data.corpus import IdCorpus
    from transformer_jax.data.tokenizer import Tokenizers

#: l of Kudo 2018: samples are drawn from this many segmentations.
NBEST = 64

#: Bytes of cached segmentations of a unigram model; Multi30k's 58,000 sentences take 297 MiB.
CACHE_BYTES = 1 << 29

#: Cached segmentations of words of a BPE model; a million take about 350 MiB.
CACHED_SEGMENTATIONS = 1 << 20

#: Longer words are not cached: the same merges are rarely dropped again.
LONGEST_WORD = 32

_SPACE = "\u2581"  # how SentencePiece writes a space

#: (text, generator, alpha) -> ids.
Segmenter = Callable[[str, np.random.Generator, float], list[int]]


def segmenter(processor: Any) -> Segmenter:
    """The function that samples with this `SentencePieceProcessor`'s kind of model."""
    scores = np.array([processor.get_score(i) for i in range(processor.vocab_size())])
    if is_bpe(processor):
        return _BpeDropout(processor, scores).sample
    return _BestSegmentations(processor, scores).sample


def is_bpe(processor: Any) -> bool:
    """Whether the model of this `SentencePieceProcessor` merges pairs."""
    try:
        processor.nbest_encode_as_ids("a", 1)
    except RuntimeError:  # raised for BPE models
        return True
    return False


class _BestSegmentations:
    """The `NBEST` most probable segmentations of texts, cached while there is room.

    Computing them takes nearly all the time of a draw, and every epoch needs the same texts.
    Entries are never evicted: each text is used once an epoch, so the oldest entry would always
    be the one that is needed next.

    Args:
        processor: a unigram `SentencePieceProcessor`.
        scores: log-probability of every piece.
        room: bytes of arrays that may be cached.
    """

    def __init__(self, processor: Any, scores: np.ndarray, room: int = CACHE_BYTES) -> None:
        self._processor, self._scores, self._room = processor, scores, room
        self._cache: dict[str, tuple[np.ndarray, np.ndarray, np.ndarray]] = {}

    def __call__(self, text: str) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """(concatenated ids of all, end of each, log-probability of each)."""
        if (cached := self._cache.get(text)) is not None:
            return cached
        segmentations = self._processor.nbest_encode_as_ids(text, NBEST)
        entry = (
            np.array([i for ids in segmentations for i in ids], np.int32),
            np.cumsum([len(ids) for ids in segmentations], dtype=np.int32),
            # The score of unknown characters does not matter: they are the same in all of them.
            np.array([self._scores[ids].sum() for ids in segmentations]),
        )
        size = len(text) + sum(array.nbytes for array in entry)
        if size <= self._room:
            self._room -= size
            self._cache[text] = entry
        return entry

    def sample(self, text: str, rng: np.random.Generator, alpha: float) -> list[int]:
        """One of the segmentations, drawn proportionally to P ** alpha."""
        ids, ends, log_probability = self(text)
        if len(ends) < 2:
            return list(ids.tolist())
        log_weights = alpha * log_probability
        cumulative = np.cumsum(np.exp(log_weights - log_weights.max()))
        drawn = int(np.searchsorted(cumulative, rng.random() * cumulative[-1], side="right"))
        return list(ids[ends[drawn - 1] if drawn else 0 : ends[drawn]].tolist())


class _Drops:
    """Which merges of a text are dropped: each with probability alpha, independently.

    The number of merges from one dropped merge to the next has a geometric distribution. It is
    drawn, in place of a number for each merge.

    Args:
        rng: the source of the numbers.
        alpha: in [0, 1].

    Attributes:
        kept: how many merges are kept before the next one that is dropped.
    """

    def __init__(self, rng: np.random.Generator, alpha: float) -> None:
        self._rng, self._alpha = rng, alpha
        self._drawn: list[float] = []
        self.kept = 0.0
        self.next()

    def next(self) -> None:
        """Draws the number of merges that are kept from here on."""
        if self._alpha in (0.0, 1.0):
            self.kept = 0.0 if self._alpha else math.inf
            return
        if not self._drawn:
            uniform = self._rng.random(16)
            self._drawn = np.floor(np.log1p(-uniform) / math.log1p(-self._alpha)).tolist()
        self.kept = self._drawn.pop()

    def __call__(self, merge: int) -> bool:
        """Whether the next merge is dropped."""
        del merge
        if self.kept:
            self.kept -= 1
            return False
        self.next()
        return True


class _BpeDropout:
    """Segmentations by merges of which some are dropped.

    No merge crosses a space, unless a piece of the vocabulary does. So each word is segmented on
    its own, and what comes out depends only on the word and on which of its merges are dropped.
    This is cached, as words repeat. Where a piece crosses spaces, or a language writes none, the
    "word" is the whole text, which is slower.

    Args:
        processor: a BPE `SentencePieceProcessor`.
        scores: of every piece; the merge with the highest one is the first.
        entries: how many segmentations of words may be cached. It changes no sample.
    """

    def __init__(
        self, processor: Any, scores: np.ndarray, entries: int = CACHED_SEGMENTATIONS
    ) -> None:
        self._processor, self._entries = processor, entries
        self._ids = {
            processor.id_to_piece(i): i
            for i in range(processor.vocab_size())
            if not (processor.is_control(i) or processor.is_unknown(i) or processor.is_byte(i))
        }
        self._order = {piece: -float(scores[i]) for piece, i in self._ids.items()}
        self._unknown = processor.unk_id()
        is_crossed = any(_SPACE in piece[1:] for piece in self._ids)
        self._words = re.compile(".+" if is_crossed else f".[^{_SPACE}]*", re.DOTALL)
        self._cache: dict[tuple[str, tuple[int, ...]], tuple[list[int], int]] = {}

    def sample(self, text: str, rng: np.random.Generator, alpha: float) -> list[int]:
        """A segmentation in which each merge is dropped with probability alpha."""
        if alpha > 1.0:
            raise UserError(
                f"tokenizer.sampling_alpha={alpha} is the probability that a merge of the BPE "
                "tokenizer is dropped: set it to 1 or less"
            )
        drops = _Drops(rng, alpha)
        result: list[int] = []
        for word in self._words.findall(self._processor.normalize(text)):
            if len(word) > LONGEST_WORD:
                result += self._merged(word, drops)[0]
            else:
                result += self._of_word(word, drops)
        if self._unknown in result:  # one for several in a row
            pairs = zip([None, *result], result, strict=False)
            result = [i for before, i in pairs if not before == i == self._unknown]
        return result

    def _of_word(self, word: str, drops: _Drops) -> list[int]:
        """The same as `_merged(word, drops)`, from the cache."""
        dropped: tuple[int, ...] = ()
        decided = 0
        while True:
            key = (word, dropped)
            cached = self._cache.get(key)
            if cached is None:
                cached = self._merged(word, dropped.__contains__)
                if len(self._cache) < self._entries:
                    self._cache[key] = cached
            ids, merges = cached
            if drops.kept >= merges - decided:
                drops.kept -= merges - decided
                return ids
            decided += int(drops.kept) + 1
            dropped += (decided - 1,)
            drops.next()

    def _merged(self, word: str, is_dropped: Callable[[int], bool]) -> tuple[list[int], int]:
        """Merges the adjacent pair with the best score, the leftmost of equals, while there is one.

        Args:
            word: normalised text.
            is_dropped: asked about each merge in turn, by its number from 0.

        Returns:
            The ids, and the number of merges that `is_dropped` was asked about.
        """
        order, ids = self._order, self._ids
        pieces = list(word)
        following = [*range(1, len(pieces)), -1]
        before = list(range(-1, len(pieces) - 1))
        waiting: list[tuple[float, int, int, str]] = []
        merges = 0

        def consider(left: int) -> None:
            if left >= 0 and (right := following[left]) >= 0:
                pair = pieces[left] + pieces[right]
                if pair in order:
                    heapq.heappush(waiting, (order[pair], left, right, pair))

        for left in range(len(pieces)):
            consider(left)
        while waiting:
            _, left, right, pair = heapq.heappop(waiting)
            if following[left] != right or pieces[left] + pieces[right] != pair:
                continue  # one of the two has been merged since
            merges += 1
            if is_dropped(merges - 1):
                continue
            pieces[left], pieces[right] = pair, ""
            following[left], following[right] = following[right], -1
            if following[left] >= 0:
                before[following[left]] = left
            consider(before[left])
            consider(left)
        result: list[int] = []
        for piece in filter(None, pieces):
            if piece in ids:
                result.append(ids[piece])
                continue
            in_bytes = [self._processor.piece_to_id(f"<0x{byte:02X}>") for byte in piece.encode()]
            # The model may have no byte fallback.
            result += [self._unknown] if self._unknown in in_bytes else in_bytes
        return result, merges


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
            samples.append(
                [
                    tokenizer.encode_sampled(sentences.text(row), int(seed), self.alpha)
                    for row, seed in zip(rows, seeds, strict=True)
                ]
            )
        return samples[0], samples[1]


def _seeds(seed: int, epoch: int, rows: np.ndarray) -> np.ndarray:
    """[2, rows] well-mixed 32-bit seeds (SplitMix64 finaliser, Steele et al. 2014)."""
    first, second = np.random.SeedSequence([seed, epoch]).generate_state(2, np.uint64)
    with np.errstate(over="ignore"):
        x = np.asarray(rows, np.uint64) + np.stack([[first], [second]])
        x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return np.asarray((x ^ (x >> np.uint64(31))) & np.uint64(0xFFFFFFFF))
