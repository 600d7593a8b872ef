"""Samples of the most probable segmentations of a text by a unigram model (Kudo 2018)."""

from collections.abc import Sequence
from itertools import chain, pairwise
from typing import Any, NamedTuple

import numpy as np

from transformer_jax.data.words import Words, mixed

#: l of Kudo 2018: samples are drawn from this many segmentations.
NBEST = 64

#: Bytes of cached segmentations of words of a unigram model; Multi30k's 39,491 words take 53 MiB.
CACHED_BYTES = 1 << 28

#: As many segmentations of a word are found first, all `NBEST` when a text needs them.
SHORT = 16

#: Units of an integer penalty in a nat of log-probability.
_NAT = 1 << 24

#: The penalty of segmentations that do not exist; no sum of others comes near it.
_NEVER = 1 << 45

#: Texts whose segmentations are sampled at a time; it bounds memory and changes no sample.
_TEXTS = 256

#: Fields of a model's `normalizer_spec`, for words that are normalised already: no
#: precompiled_charsmap, no add_dummy_prefix, remove_extra_whitespaces, escape_whitespaces.
_NO_NORMALIZER = b"\x1a\x08\x12\x00\x18\x00\x20\x00\x28\x00"


class _Best(NamedTuple):
    """The most probable segmentations of a word, at most N, the best first."""

    penalties_N: np.ndarray  # log-probability of the best less that of each, in units of 1 / _NAT
    ids: np.ndarray  # of all, concatenated
    bounds_N2: np.ndarray  # where those of each begin and end
    is_enough: bool  # no other segmentation of the word is among the `NBEST` best of a text


class BestSegmentations:
    """Draws one of the `NBEST` most probable segmentations of each text.

    No piece crosses a space (see `Words`), so a segmentation of a text is one of each word, and
    its log-probability is their sum. Therefore the best ones of a text follow from those of its
    words, which are cached, as words repeat. `SHORT` of each word are nearly always enough, and
    quicker to find. Log-probabilities are integers: their sums are the same in any order, so a
    sample depends neither on the machine nor on the other texts.

    Args:
        processor: a unigram `SentencePieceProcessor`.
        scores: log-probability of every piece.
        room: bytes of segmentations that may be cached. It changes no sample.
    """

    def __init__(self, processor: Any, scores: np.ndarray, room: int = CACHED_BYTES) -> None:
        self._room = room
        self._words = Words(processor)
        self._cache: dict[str, _Best] = {}
        # Protocol buffers that follow each other are merged, and the last value of a field counts.
        self._processor = type(processor)(
            model_proto=processor.serialized_model_proto() + _NO_NORMALIZER
        )
        ids = range(processor.vocab_size())
        is_unknown = np.array([processor.is_unknown(i) or processor.is_byte(i) for i in ids])
        # SentencePiece does not say what it takes for unknown characters and user-defined symbols.
        self._is_odd = is_unknown | (scores == 0.0)
        self._scores = np.rint(scores * _NAT).astype(np.int64)
        self._scores[is_unknown] = self._scores.min() - 10 * _NAT

    def sample(
        self, texts: Sequence[str], seeds: Sequence[int] | np.ndarray, alpha: float
    ) -> list[list[int]]:
        """For each text one segmentation, drawn proportionally to P ** alpha."""
        uniform = (mixed(np.asarray(seeds, np.uint64)) >> np.uint64(11)) * 2.0**-53
        result = []
        for start in range(0, len(texts), _TEXTS):
            some = slice(start, start + _TEXTS)
            rows = [self._words(text) for text in texts[some]]
            result += self._sample(rows, uniform[some], alpha)
        return result

    def _sample(
        self,
        rows: list[list[str]],
        uniform_R: np.ndarray,
        alpha: float,
        long: frozenset[str] = frozenset(),
    ) -> list[list[int]]:
        """The ids of each row of words; those of the words in `long` need `NBEST` segmentations."""
        words = list(chain.from_iterable(rows))
        if not words:
            return [[] for _ in rows]
        lists = self._lists(words, long)  # of U different words
        numbers = {word: number for number, word in enumerate(lists)}
        of_W = np.fromiter(map(numbers.__getitem__, words), int, len(words))
        counts_R = [len(row) for row in rows]
        row_W = np.repeat(np.arange(len(rows)), counts_R)

        widths_U = np.array([len(best.penalties_N) for best in lists.values()])
        penalties_UN = np.full((len(lists), NBEST), _NEVER)
        penalties_UN[np.arange(NBEST) < widths_U[:, None]] = np.concatenate(
            [best.penalties_N for best in lists.values()]
        )
        open_W = np.flatnonzero(widths_U[of_W] > 1)  # the other words have no choice
        chosen_W = np.zeros(len(words), int)
        chosen_W[open_W], last_R = _drawn(
            penalties_UN[of_W[open_W]], row_W[open_W], uniform_R, alpha
        )
        flat, ends_W = _ids(list(lists.values()), of_W, chosen_W)
        ends_R = np.append(0, ends_W)[np.cumsum(counts_R)].tolist()
        result = [self._words.joined(flat[start:end]) for start, end in pairwise([0, *ends_R])]

        # A list is known up to its last penalty, or a little less: SentencePiece adds in float32.
        known_U = penalties_UN[np.arange(len(lists)), widths_U - 1] - _NAT // 64
        known_U[[best.is_enough for best in lists.values()]] = 2 * _NEVER
        short_W = np.flatnonzero(known_U[of_W] <= last_R[row_W])
        if len(short_W):
            again = np.unique(row_W[short_W]).tolist()
            longer = self._sample(
                [rows[i] for i in again],
                uniform_R[again],
                alpha,
                frozenset(words[i] for i in short_W),
            )
            for i, ids in zip(again, longer, strict=True):
                result[i] = ids
        return result

    def _lists(self, words: Sequence[str], long: frozenset[str]) -> dict[str, _Best]:
        """The best segmentations of each different word, from the cache where it has them."""
        result: dict[str, Any] = {word: self._cache.get(word) for word in dict.fromkeys(words)}
        missing: dict[int, list[str]] = {SHORT: [], NBEST: []}
        for word, cached in result.items():
            size = NBEST if word in long else SHORT
            if cached is None or (size == NBEST and not cached.is_enough):
                missing[size].append(word)
        for size, some in missing.items():
            for word, best in zip(some, self._computed(some, size), strict=True):
                used = _bytes(best) - _bytes(result[word])
                result[word] = best
                if used <= self._room:
                    self._room -= used
                    self._cache[word] = best
        return result

    def _computed(self, words: Sequence[str], size: int) -> list[_Best]:
        """At least the `size` best segmentations of each word, S in all."""
        if not words:
            return []
        lists = [self._processor.nbest_encode_as_ids(word, size) for word in words]
        counts_W = np.array([len(some) for some in lists])
        ends_W = np.cumsum(counts_W)
        word_S = np.repeat(np.arange(len(words)), counts_W)
        bounds = np.cumsum([0, *map(len, chain.from_iterable(lists))])
        ids = np.fromiter(chain.from_iterable(chain.from_iterable(lists)), np.int32)
        odd_S = np.diff(np.append(0, np.cumsum(self._is_odd[ids]))[bounds])
        is_odd_W = np.bincount(word_S, odd_S, len(words)) > 0
        scores_S = np.diff(np.append(0, np.cumsum(self._scores[ids]))[bounds])
        order_S = np.lexsort((-scores_S, word_S))
        penalties_S = (scores_S[order_S][ends_W - counts_W])[word_S] - scores_S[order_S]
        starts_W = bounds[ends_W - counts_W]
        bounds_S2 = np.stack([bounds[:-1], bounds[1:]], axis=1)[order_S] - starts_W[word_S, None]
        bounds_S2 = bounds_S2.astype(np.int32)
        result = []
        for i, (count, end) in enumerate(zip(counts_W.tolist(), ends_W.tolist(), strict=True)):
            if is_odd_W[i] and size < NBEST:  # their order is another one
                result += self._computed(words[i : i + 1], NBEST)
                continue
            some = slice(end - count, end)
            ids_of_word = ids[bounds[end - count] : bounds[end]]
            is_enough = count < size or size == NBEST
            result.append(_Best(penalties_S[some], ids_of_word, bounds_S2[some], is_enough))
        return result


def _ids(
    lists: Sequence[_Best], of_W: np.ndarray, chosen_W: np.ndarray
) -> tuple[list[int], np.ndarray]:
    """The ids of segmentation chosen_W of list of_W, concatenated, and where each ends."""
    widths_U = np.array([len(best.bounds_N2) for best in lists])
    bounds_S2 = np.concatenate([best.bounds_N2 for best in lists])
    bounds_W2 = bounds_S2[(np.cumsum(widths_U) - widths_U)[of_W] + chosen_W]
    starts_U = np.cumsum([0, *(len(best.ids) for best in lists)])
    lengths_W = bounds_W2[:, 1] - bounds_W2[:, 0]
    ends_W = np.cumsum(lengths_W)
    shifts = np.repeat(starts_U[of_W] + bounds_W2[:, 1] - ends_W, lengths_W)
    ids = np.concatenate([best.ids for best in lists])[shifts + np.arange(len(shifts))]
    return ids.tolist(), ends_W


def _bytes(best: _Best | None) -> int:
    """About how much memory it takes in the cache, with its word."""
    if best is None:
        return 0
    return 700 + best.penalties_N.nbytes + best.ids.nbytes + best.bounds_N2.nbytes


def _drawn(
    penalties_WN: np.ndarray, row_W: np.ndarray, uniform_R: np.ndarray, alpha: float
) -> tuple[np.ndarray, np.ndarray]:
    """Which segmentation each word gets, so that each row has one of its `NBEST` best.

    Args:
        penalties_WN: of each word's segmentations, ascending.
        row_W: which text each word is of, ascending.
        uniform_R: for each text a number in [0, 1).
        alpha: rows are drawn proportionally to exp(-alpha * penalty).

    Returns:
        Of each word, a number less than N; and of each text, the largest penalty of its `NBEST`.
    """
    merges = []
    while True:  # halve the number of words in each text
        starts_W = np.searchsorted(row_W, row_W)
        left = np.flatnonzero((np.arange(len(row_W)) - starts_W) % 2 == 0)
        has_right = np.append(row_W[1:] == row_W[:-1], False)[left]
        if not has_right.any():
            break
        pairs = left[has_right]
        codes_WN = np.zeros((len(left), NBEST), int)
        codes_WN[:] = np.arange(NBEST) * NBEST
        merged_WN = penalties_WN[left]
        merged_WN[has_right], codes_WN[has_right] = _smallest_sums(
            penalties_WN[pairs], penalties_WN[pairs + 1]
        )
        merges.append((left, has_right, codes_WN))
        penalties_WN, row_W = merged_WN, row_W[left]
    # One word is left of each text that had any.
    weights_RN = np.where(penalties_WN < _NEVER, np.exp(penalties_WN * (-alpha / _NAT)), 0.0)
    sums_RN = np.cumsum(weights_RN, axis=1)
    chosen_W = (sums_RN[:, :-1] <= uniform_R[row_W, None] * sums_RN[:, -1:]).sum(1)
    for left, has_right, codes_WN in reversed(merges):
        code = np.take_along_axis(codes_WN, chosen_W[:, None], axis=1)[:, 0]
        chosen_W = np.empty(len(left) + int(has_right.sum()), int)
        chosen_W[left], chosen_W[left[has_right] + 1] = code // NBEST, code[has_right] % NBEST
    last_R = np.zeros(len(uniform_R), np.int64)
    last_R[row_W] = penalties_WN[:, -1]
    return chosen_W, last_R


#: (first i, last i, end of j): pairs of places in two ascending lists whose sum can be among the
#: `NBEST` smallest. Sums at smaller places are not larger, so (i + 1) * (j + 1) <= NBEST.
_BLOCKS = [
    (NBEST // (end + 1), NBEST // end, end)
    for end in range(NBEST, 0, -1)
    if NBEST // (end + 1) < NBEST // end
]


def _smallest_sums(a_WN: np.ndarray, b_WN: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The `NBEST` smallest sums of one number of a and one of b, both ascending.

    Returns:
        The sums [W, N], ascending, and the places of their two numbers, as i * N + j. Of equal
        sums the one with the smaller i is first, then that with the smaller j.
    """
    # One integer has a sum and its places: sorting it is several times as fast as argsort.
    a_WN = a_WN * NBEST**2 + np.arange(NBEST) * NBEST
    b_WN = b_WN * NBEST**2 + np.arange(NBEST)
    keys = np.empty((len(a_WN), sum((last - first) * end for first, last, end in _BLOCKS)), int)
    place = 0
    for first, last, end in _BLOCKS:
        block = keys[:, place : place + (last - first) * end].reshape(-1, last - first, end)
        np.add(a_WN[:, first:last, None], b_WN[:, None, :end], out=block)
        place += (last - first) * end
    keys.sort(axis=1)
    sums_WN, places_WN = np.divmod(keys[:, :NBEST], NBEST**2)
    return np.minimum(sums_WN, _NEVER), places_WN
