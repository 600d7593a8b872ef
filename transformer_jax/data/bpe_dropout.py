"""BPE dropout: segmentations by merges of which some are dropped (Provilkov et al. 2020)."""

import heapq
import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from transformer_jax.data.words import Words
from transformer_jax.errors import UserError

#: Cached segmentations of words of a BPE model; a million take about 350 MiB.
CACHED_SEGMENTATIONS = 1 << 20

#: Longer words are not cached: the same merges are rarely dropped again.
LONGEST_WORD = 32


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


class BpeDropout:
    """Segmentations by merges of which some are dropped.

    No merge crosses the words of `Words`. So each word is segmented on its own, and what comes out
    depends only on the word and on which of its merges are dropped. This is cached, as words
    repeat. Where the "word" is the whole text, it is slower.

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
        self._words = Words(processor)
        self._cache: dict[tuple[str, tuple[int, ...]], tuple[list[int], int]] = {}

    def sample(
        self, texts: Sequence[str], seeds: Sequence[int] | np.ndarray, alpha: float
    ) -> list[list[int]]:
        """For each text a segmentation in which each merge is dropped with probability alpha."""
        if alpha > 1.0:
            raise UserError(
                f"tokenizer.sampling_alpha={alpha} is the probability that a merge of the BPE "
                "tokenizer is dropped: set it to 1 or less"
            )
        return [
            self._sample(text, _Drops(np.random.default_rng(int(seed)), alpha))
            for text, seed in zip(texts, seeds, strict=True)
        ]

    def _sample(self, text: str, drops: _Drops) -> list[int]:
        result: list[int] = []
        for word in self._words(text):
            if len(word) > LONGEST_WORD:
                result += self._merged(word, drops)[0]
            else:
                result += self._of_word(word, drops)
        return self._words.joined(result)

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
