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

import heapq
import math
import re
from collections.abc import Callable, Sequence
from itertools import chain, pairwise
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from transformer_jax.errors import UserError

if TYPE_CHECKING:
    from transformer_jax.data.corpus import IdCorpus
    from transformer_jax.data.tokenizer import Tokenizers

#: l of Kudo 2018: samples are drawn from this many segmentations.
NBEST = 64

#: Bytes of cached segmentations of words of a unigram model; Multi30k's 39,491 words take 53 MiB.
CACHED_BYTES = 1 << 28

#: Cached segmentations of words of a BPE model; a million take about 350 MiB.
CACHED_SEGMENTATIONS = 1 << 20

#: Longer words are not cached: the same merges are rarely dropped again.
LONGEST_WORD = 32

_SPACE = "\u2581"  # how SentencePiece writes a space

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

#: (texts, a seed of each, alpha) -> ids of each.
Segmenter = Callable[[Sequence[str], Sequence[int] | np.ndarray, float], list[list[int]]]


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


class _Words:
    """Cuts texts where no piece of the vocabulary can cross: before each space.

    Where a piece does cross spaces, or a language writes none, the "word" is the whole text.

    Args:
        processor: a `SentencePieceProcessor`.
    """

    def __init__(self, processor: Any) -> None:
        self._processor = processor
        pieces = map(processor.id_to_piece, range(processor.vocab_size()))
        is_crossed = any(_SPACE in piece[1:] for piece in pieces)
        self._pattern = re.compile(".+" if is_crossed else f".[^{_SPACE}]*", re.DOTALL)
        self._unknown = processor.unk_id()

    def __call__(self, text: str) -> list[str]:
        """The words of a text, normalised: joined, they are what SentencePiece segments."""
        return self._pattern.findall(self._processor.normalize(text))

    def joined(self, ids: list[int]) -> list[int]:
        """Ids of the words of a text as SentencePiece gives them: one UNK for several in a row."""
        if self._unknown not in ids:
            return ids
        pairs = zip([None, *ids], ids, strict=False)
        return [i for before, i in pairs if not before == i == self._unknown]


class _Best(NamedTuple):
    """The most probable segmentations of a word, at most N, the best first."""

    penalties_N: np.ndarray  # log-probability of the best less that of each, in units of 1 / _NAT
    ids: np.ndarray  # of all, concatenated
    bounds_N2: np.ndarray  # where those of each begin and end
    is_enough: bool  # no other segmentation of the word is among the `NBEST` best of a text


class _BestSegmentations:
    """Draws one of the `NBEST` most probable segmentations of each text.

    No piece crosses a space (see `_Words`), so a segmentation of a text is one of each word, and
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
        self._words = _Words(processor)
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
        uniform = (_mixed(np.asarray(seeds, np.uint64)) >> np.uint64(11)) * 2.0**-53
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

    No merge crosses the words of `_Words`. So each word is segmented on its own, and what comes out
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
        self._words = _Words(processor)
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
    return np.asarray(_mixed(x) & np.uint64(0xFFFFFFFF))


def _mixed(x: np.ndarray) -> np.ndarray:
    """Well-mixed 64-bit numbers, one for one (SplitMix64's finaliser, Steele et al. 2014)."""
    with np.errstate(over="ignore"):
        x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return x ^ (x >> np.uint64(31))
