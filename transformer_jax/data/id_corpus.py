"""A parallel corpus as ids: flat arrays and offsets, in memory or memory-mapped."""

from __future__ import annotations

import functools
import hashlib
from collections.abc import Sequence

import numpy as np

Arrays = dict[str, np.ndarray]


class IdCorpus:
    """Sentence pairs as ids, flat, with offsets; in memory or memory-mapped.

    Attributes:
        source_ids, target_ids: [total] integers, no BOS or EOS.
        source_offsets, target_offsets: [pairs + 1] int64, ascending, from 0.
        source_lengths, target_lengths: [pairs] int32, slots a sentence needs, EOS included;
            with subword sampling these leave room for the usual sampled segmentation.
        has_text: whether the text is at hand (needed for subword sampling).
    """

    def __init__(self, arrays: Arrays):
        self._arrays = arrays
        self.source_ids, self.target_ids = arrays["source_ids"], arrays["target_ids"]
        self.source_offsets = arrays["source_offsets"]
        self.target_offsets = arrays["target_offsets"]
        if len(self.source_offsets) != len(self.target_offsets):
            raise ValueError(
                f"expected as many source as target sentences, got "
                f"{len(self.source_offsets) - 1} and {len(self.target_offsets) - 1}"
            )
        self.has_text = "source_text" in arrays
        self.source_lengths = self._lengths("source")
        self.target_lengths = self._lengths("target")

    def _lengths(self, side: str) -> np.ndarray:
        if f"{side}_room" in self._arrays:
            return np.asarray(self._arrays[f"{side}_room"], np.int32) + 1
        return np.diff(self._arrays[f"{side}_offsets"]).astype(np.int32) + 1

    @classmethod
    def from_lists(
        cls, source: Sequence[Sequence[int]], target: Sequence[Sequence[int]]
    ) -> IdCorpus:
        """From lists of ids without BOS and EOS; ValueError when the counts differ."""
        if len(source) != len(target):
            raise ValueError(
                f"expected as many source as target sentences, got {len(source)} and {len(target)}"
            )
        arrays: Arrays = {}
        for side, sentences in (("source", source), ("target", target)):
            lengths = np.fromiter((len(s) for s in sentences), np.int64, len(sentences))
            arrays[f"{side}_offsets"] = _offsets(lengths)
            parts = [np.asarray(s, dtype=np.int32) for s in sentences]
            arrays[f"{side}_ids"] = np.concatenate(parts) if parts else np.zeros(0, np.int32)
        return cls(arrays)

    def __len__(self) -> int:
        return len(self.source_offsets) - 1

    @functools.cached_property
    def fingerprint(self) -> str:
        """Hash of all that training reads of the corpus: every id, in its order."""
        content = hashlib.sha256()
        for name, values in sorted(self._arrays.items()):
            content.update(f"{name} {values.dtype.str} {len(values)}\n".encode())
            content.update(np.ascontiguousarray(values).data)
        return content.hexdigest()[:32]

    def source(self, i: int) -> np.ndarray:
        """Ids of source sentence i, [length] int32, no EOS."""
        return self._slice("source_ids", "source_offsets", i).astype(np.int32)

    def target(self, i: int) -> np.ndarray:
        """Ids of target sentence i, [length] int32, no EOS."""
        return self._slice("target_ids", "target_offsets", i).astype(np.int32)

    def source_text(self, i: int) -> str:
        """Source sentence i as text; only with `has_text`."""
        return self._slice("source_text", "source_text_offsets", i).tobytes().decode("utf-8")

    def target_text(self, i: int) -> str:
        """Target sentence i as text; only with `has_text`."""
        return self._slice("target_text", "target_text_offsets", i).tobytes().decode("utf-8")

    def _slice(self, values: str, offsets: str, i: int) -> np.ndarray:
        if values not in self._arrays:
            raise ValueError("this corpus keeps no text: make it with sampling_alpha > 0")
        start, stop = self._arrays[offsets][i : i + 2].tolist()
        return self._arrays[values][start:stop]


def _offsets(lengths: np.ndarray) -> np.ndarray:
    return np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64)
