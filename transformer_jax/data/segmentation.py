"""Subword regularisation: random segmentations of a text, the same in every process.

SentencePiece's own sampling cannot be seeded reproducibly: with the same seed, another process
draws other samples, and a resumed run would differ from an uninterrupted one. Therefore this
module draws the samples, from a seed that is a pure function of (seed, epoch, pair, side).

- unigram: among the `NBEST` most probable segmentations, proportionally to
  P(segmentation) ** alpha (Kudo 2018, arXiv:1804.10959, section 3.3, with l = 64).
- BPE: each time a merge is considered, it is dropped with probability alpha (Provilkov,
  Emelianenko and Voita 2020, arXiv:1910.13267, algorithm 1); alpha = 0 is the model's own
  segmentation.
"""

import heapq
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from transformer_jax.data.corpus import IdCorpus
    from transformer_jax.data.tokenizer import Tokenizers

#: l of Kudo 2018: samples are drawn from this many segmentations.
NBEST = 64

#: Bytes of cached segmentations of a unigram model; Multi30k's 58,000 sentences take 297 MiB.
CACHE_BYTES = 1 << 29

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


def _merged(
    processor: Any,
    ids: dict[str, int],
    scores: np.ndarray,
    text: str,
    rng: np.random.Generator,
    alpha: float,
) -> list[int]:
    """Merges the adjacent pair with the best score, the leftmost of equals, until none is left."""
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
            continue  # one of the two has been merged since
        if alpha > 0 and rng.random() < alpha:
            continue
        pieces[left], pieces[right] = pair, ""
        following[left], following[right] = following[right], -1
        if following[left] >= 0:
            before[following[left]] = left
        consider(before[left])
        consider(left)
    result: list[int] = []
    unknown = processor.unk_id()
    for piece in filter(None, pieces):
        in_bytes = [processor.piece_to_id(f"<0x{byte:02X}>") for byte in piece.encode()]
        if piece in ids:
            result.append(ids[piece])
        elif unknown not in in_bytes:  # the model has byte fallback
            result += in_bytes
        elif result[-1:] != [unknown]:  # one for several in a row
            result.append(unknown)
    return result


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
