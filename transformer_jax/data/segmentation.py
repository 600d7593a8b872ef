"""Random segmentations of a text by a SentencePiece model, the same in every process.

SentencePiece draws its own samples from a generator that cannot be pinned down: with the
same seeds another process draws others, and a run that is stopped and continued would not
see what an undisturbed one sees. So the draw is ours.

- unigram: among the `NBEST` most probable segmentations, proportionally to
  P(segmentation) ** alpha (Kudo 2018, arXiv:1804.10959, section 3.3, with l = 64).
- BPE: each time a merge is looked at it is dropped with probability alpha (Provilkov,
  Emelianenko and Voita 2020, arXiv:1910.13267, algorithm 1); alpha = 0 is the model's own
  segmentation.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable
from typing import Any

import numpy as np

#: Kudo's l: so many segmentations stand for all of them.
NBEST = 64

#: Of segmentations of a unigram model that are kept; Multi30k's 58,000 sentences take 297 MiB.
KEPT_BYTES = 1 << 29

#: (text, generator, alpha) -> ids.
Segmenter = Callable[[str, np.random.Generator, float], list[int]]


def segmenter(processor: Any) -> Segmenter:
    """The function that samples with this `SentencePieceProcessor`'s kind of model."""
    scores = np.array([processor.get_score(i) for i in range(processor.vocab_size())])
    if is_bpe(processor):
        ids = {
            processor.id_to_piece(i): i
            for i in range(processor.vocab_size())
            if not (processor.is_control(i) or processor.is_unknown(i) or processor.is_byte(i))
        }
        return lambda text, rng, alpha: _merged(processor, ids, scores, text, rng, alpha)
    return _BestSegmentations(processor, scores).sample


def is_bpe(processor: Any) -> bool:
    """Whether the model of this `SentencePieceProcessor` merges pairs."""
    try:
        processor.nbest_encode_as_ids("a", 1)
    except RuntimeError:  # its way to say so
        return True
    return False


class _BestSegmentations:
    """The `NBEST` most probable segmentations of texts, kept as long as there is room.

    Looking for them is nearly all the work of a draw, and an epoch asks for the same texts as
    the last one. What has come first stays: with every text asked for once an epoch, making
    room would throw out each just before it is wanted again.

    Args:
        processor: a unigram `SentencePieceProcessor`.
        scores: log-probability of every piece.
        room: bytes of arrays that may be kept.
    """

    def __init__(self, processor: Any, scores: np.ndarray, room: int = KEPT_BYTES) -> None:
        self._processor, self._scores, self._room = processor, scores, room
        self._kept: dict[str, tuple[np.ndarray, np.ndarray, np.ndarray]] = {}

    def __call__(self, text: str) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """(ids of all one after the other, where each ends, log-probability of each)."""
        if (kept := self._kept.get(text)) is not None:
            return kept
        segmentations = self._processor.nbest_encode_as_ids(text, NBEST)
        found = (
            np.array([i for ids in segmentations for i in ids], np.int32),
            np.cumsum([len(ids) for ids in segmentations], dtype=np.int32),
            # What is unknown is so in all of them, so its score need not be the one that was used.
            np.array([self._scores[ids].sum() for ids in segmentations]),
        )
        size = len(text) + sum(array.nbytes for array in found)
        if size <= self._room:
            self._room -= size
            self._kept[text] = found
        return found

    def sample(self, text: str, rng: np.random.Generator, alpha: float) -> list[int]:
        """One of them, proportionally to P ** alpha."""
        ids, ends, log_probability = self(text)
        if len(ends) < 2:
            return list(ids.tolist())
        log_weights = alpha * log_probability
        cumulative = np.cumsum(np.exp(log_weights - log_weights.max()))
        drawn = int(np.searchsorted(cumulative, rng.random() * cumulative[-1], side="right"))
        return list(ids[ends[drawn - 1] if drawn else 0 : ends[drawn]].tolist())


def _merged(
    processor: Any,
    ids: dict[str, int],
    scores: np.ndarray,
    text: str,
    rng: np.random.Generator,
    alpha: float,
) -> list[int]:
    """Merges the pair with the best score, the leftmost first, while there is one."""
    pieces = list(processor.normalize(text))
    following = [*range(1, len(pieces)), -1]
    before = list(range(-1, len(pieces) - 1))
    waiting: list[tuple[float, int, int, str]] = []

    def consider(left: int) -> None:
        if left >= 0 and (right := following[left]) >= 0:
            pair = pieces[left] + pieces[right]
            if pair in ids:
                heapq.heappush(waiting, (-scores[ids[pair]], left, right, pair))

    for left in range(len(pieces)):
        consider(left)
    while waiting:
        _, left, right, pair = heapq.heappop(waiting)
        if following[left] != right or pieces[left] + pieces[right] != pair:
            continue  # one of the two has been merged with another since
        if alpha > 0 and rng.random() < alpha:
            continue
        pieces[left], pieces[right] = pair, ""
        following[left], following[right] = following[right], -1
        if following[left] >= 0:
            before[following[left]] = left
        consider(before[left])
        consider(left)
    found: list[int] = []
    for piece in filter(None, pieces):
        if piece in ids:
            found.append(ids[piece])
        elif (first := _byte(processor, piece.encode()[0])) != processor.unk_id():
            found += [first, *(_byte(processor, byte) for byte in piece.encode()[1:])]
        elif not found or found[-1] != processor.unk_id():  # one for several in a row
            found.append(processor.unk_id())
    return found


def _byte(processor: Any, byte: int) -> int:
    return int(processor.piece_to_id(f"<0x{byte:02X}>"))
