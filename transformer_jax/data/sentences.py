"""Sentences, blocks of them, and sentence pairs as ids: views of flat arrays."""

import functools
import hashlib
import mmap
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any, NamedTuple, Self

import numpy as np

from transformer_jax.data.batch_shapes import Shape
from transformer_jax.data.blocks import Blocks, cut
from transformer_jax.vocabulary import EOS_ID, PAD_ID

Arrays = dict[str, np.ndarray]

_PART = 1 << 26  # bytes of an array that are read at a time


class Sentences:
    """The sentences of one language as ids, or blocks of them, in memory or memory-mapped.

    Args:
        arrays: "ids" [total] integers, no BOS or EOS; "offsets" [sentences + 1] int64, ascending,
            from 0. For subword sampling also "room" [sentences], the length that leaves room for
            the usual sample, and "text" [bytes] with "text_offsets" [sentences + 1]. For blocks
            also "first" and "last" [blocks]: block i is the sentences first[i] ... last[i] - 1,
            and each sentence has the separator, or at the end of a document EOS, as its last id.

    Attributes:
        ids, offsets: see above.
        starts, stops: [rows] int64, where the ids of each sentence, or block, begin and end.
    """

    def __init__(self, arrays: Arrays):
        self.arrays = arrays
        self.ids, self.offsets = arrays["ids"], arrays["offsets"]
        # Of what each row begins and ends with: the blocks, or all sentences.
        self._first, self._last = arrays.get("first", slice(-1)), arrays.get("last", slice(1, None))
        self.starts, self.stops = self.offsets[self._first], self.offsets[self._last]
        if "first" in arrays:
            self.stops = self.stops - 1

    def __len__(self) -> int:
        return len(self.starts)

    def __getitem__(self, i: int) -> np.ndarray:
        """Ids of sentence or block i, [length] int32, no EOS."""
        return self.ids[self.starts[i] : self.stops[i]].astype(np.int32)

    @property
    def lengths(self) -> np.ndarray:
        """[rows] int32: slots that each row needs, EOS included. It is computed anew each time."""
        slots, lengths = self.slots, np.empty(len(self), np.int32)
        np.subtract(slots[self._last], slots[self._first], out=lengths, casting="unsafe")
        return lengths if "first" in self.arrays else lengths + 1

    @property
    def slots(self) -> np.ndarray:
        """[sentences + 1] int64: the ids that the sentences before each have, or may have."""
        if "room" not in self.arrays:
            return self.offsets
        return np.append(0, np.cumsum(self.arrays["room"], dtype=np.int64))

    def members(self, i: int) -> range:
        """The sentences of which row i consists."""
        if "first" in self.arrays:
            return range(int(self.arrays["first"][i]), int(self.arrays["last"][i]))
        return range(i, i + 1)

    def joined(self, members: range, parts: Sequence[Sequence[int]]) -> list[int]:
        """The ids of a row, no EOS, whose sentences `members` have the ids `parts`."""
        if "first" not in self.arrays:
            return list(parts[0])
        ends = self.ids[self.offsets[members.start + 1 : members.stop + 1] - 1].tolist()
        separated = ((*part, end) for part, end in zip(parts, ends, strict=True))
        return list(chain.from_iterable(separated))[:-1]

    def counts(self, size: int) -> np.ndarray:
        """How often each of the ids 0 ... size - 1 occurs, [size] int64."""
        counts = (np.bincount(page, minlength=size) for page in in_pages(self.ids))
        return sum(counts, np.zeros(size, np.int64))

    def text(self, i: int) -> str:
        """Sentence i as text, of a corpus that was made with a sampler."""
        start, stop = self.arrays["text_offsets"][i : i + 2]
        return self.arrays["text"][start:stop].tobytes().decode("utf-8")

    def padded(self, rows: np.ndarray, size: int, length: int) -> tuple[np.ndarray, np.ndarray]:
        """The rows with EOS: ids [size, length] int32, and the mask of real tokens."""
        starts_B1, lengths_B1 = np.zeros((size, 1), np.int64), np.full((size, 1), -1)
        starts_B1[: len(rows), 0] = self.starts[rows]
        lengths_B1[: len(rows), 0] = self.stops[rows] - self.starts[rows]
        column_L = np.arange(length)
        is_token_BL = column_L < lengths_B1
        ids_BL = np.where(column_L == lengths_B1, EOS_ID, PAD_ID).astype(np.int32)
        ids_BL[is_token_BL] = self.ids[(starts_B1 + column_L)[is_token_BL]]
        return ids_BL, column_L <= lengths_B1


class PieceLinks(NamedTuple):
    """Which pieces of each sentence pair are linked: its word alignments."""

    #: "source" and "target" [links] integers, places in the two sentences, and "offsets"
    #: [pairs + 1] int64, where the links of each pair begin
    arrays: Arrays

    def padded(self, rows: np.ndarray, shape: Shape) -> np.ndarray:
        """The links of some pairs, as bool [B, T, S], for a batch of shape (B, S, T)."""
        size, source_length, target_length = shape
        linked_BTS = np.zeros((size, target_length, source_length), bool)
        for place, row in enumerate(rows.tolist()):
            own = slice(*self.arrays["offsets"][row : row + 2])
            linked_BTS[place, self.arrays["target"][own], self.arrays["source"][own]] = True
        return linked_BTS


@dataclass(frozen=True)
class IdCorpus:
    """Sentence pairs, or pairs of blocks, as ids."""

    source: Sentences
    target: Sentences
    sizes: tuple[int, ...] = ()  #: pairs of each corpus, in order; () = there is one
    links: PieceLinks | None = None  #: None = the text has no word alignments

    @classmethod
    def from_lists(cls, source: Sequence[Sequence[int]], target: Sequence[Sequence[int]]) -> Self:
        """From as many lists of ids of each side, without BOS and EOS."""
        sides = []
        for sentences in (source, target):
            ids, lengths = flat(sentences, np.int32)
            sides.append(Sentences({"ids": ids, "offsets": np.append(0, np.cumsum(lengths))}))
        return cls(sides[0], sides[1], (len(source),))

    def __len__(self) -> int:
        return len(self.source)

    def num_with(self, piece: int) -> int:
        """How many pairs have this id, on either side."""
        has_piece = np.zeros(len(self), bool)
        for side in (self.source, self.target):
            for start in range(0, len(side.ids), _PART):
                places = start + np.flatnonzero(side.ids[start : start + _PART] == piece)
                has_piece[np.searchsorted(side.starts, places, "right") - 1] = True
        return int(has_piece.sum())

    def in_blocks(self, blocks: Sequence[Blocks]) -> "IdCorpus":
        """The same ids as pairs of blocks, which are ordered by corpus.

        Args:
            blocks: what is asked for; the corpus was made with `joined`.
        """
        sides = self.source, self.target
        # Of both sides: a document ends with the same pair.
        is_last = self.source.ids[self.source.offsets[1:] - 1] == EOS_ID
        ranges = cut(blocks, [side.slots for side in sides], is_last)
        corpus_of = np.searchsorted(np.cumsum(self.sizes), ranges[0], "right")
        first, last = ranges[:, np.argsort(corpus_of, kind="stable")]
        source, target = (Sentences(side.arrays | {"first": first, "last": last}) for side in sides)
        sizes = np.bincount(corpus_of, minlength=len(self.sizes)).tolist()
        return IdCorpus(source, target, tuple(sizes))

    @functools.cached_property
    def fingerprint(self) -> str:
        """Hash of everything that training reads from the corpus, in its order."""
        content = hashlib.sha256()
        for side in ("source", "target", *(["links"] if self.links else [])):
            for name, values in sorted(getattr(self, side).arrays.items()):
                content.update(f"{side}_{name} {values.dtype.str} {len(values)}\n".encode())
                for part in in_pages(values):
                    content.update(np.ascontiguousarray(part).data)
        return content.hexdigest()[:32]


def flat(sentences: Sequence[Sequence[int]], dtype: Any) -> tuple[np.ndarray, np.ndarray]:
    """The ids of all sentences, one after the other, and the length of each."""
    lengths = np.fromiter(map(len, sentences), np.int64, len(sentences))
    return np.fromiter(chain.from_iterable(sentences), dtype, int(lengths.sum())), lengths


def in_pages(values: np.ndarray) -> Iterator[np.ndarray]:
    """The parts of an array; those of a mapped file leave memory once they are used."""
    step = _PART // values.itemsize
    for start in range(0, len(values), step):
        yield values[start : start + step]
        mapped = values.base
        if isinstance(mapped, mmap.mmap) and hasattr(mapped, "madvise"):
            begin = start * values.itemsize // mmap.PAGESIZE * mmap.PAGESIZE
            end = min((start + step) * values.itemsize, len(mapped))
            mapped.madvise(mmap.MADV_DONTNEED, begin, end - begin)
