"""Parallel text that `transformer-jax prepare` has prepared.

The text of a corpus is in parts of some 100,000 pairs, as gzipped lines of JSON: the number of the
document, source, target. `merged.json` says how many there are, and `kept.bin` which pairs filters
have left in. The folder also has the ids and the tokenizer; see `commands/prepare/shards.py`.
"""

import gzip
import hashlib
import json
import zlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from pydantic import NonNegativeInt

from transformer_jax.data.sources.base import (
    BOUNDARY,
    Languages,
    Numbered,
    Pair,
    Source,
    Split,
    missing,
)
from transformer_jax.errors import UserError
from transformer_jax.settings.types import FileName

#: Of the folder: raise it when its layout changes.
FORMAT = 2

#: The file of a corpus with the links between the words of each pair that is used.
LINKS = "links"


@dataclass(frozen=True)
class Prepared(Source):
    """A corpus in a folder that `transformer-jax prepare` has written."""

    folder: FileName  #: what `prepare --output` named
    corpus: NonNegativeInt = 0  #: which of its corpora

    @property
    def languages(self) -> tuple[str | None, str | None]:
        """Those that the text was prepared for."""
        source, target = self._record["languages"]
        return source, target

    @property
    def has_documents(self) -> bool:
        """Whether the text told where documents end."""
        return bool(self._record["has_documents"])

    @property
    def alignments(self) -> tuple[str, ...]:
        """The links that the text had, if it had any."""
        folder = corpus_folder(Path(self.folder), self.corpus)
        return (str(folder / LINKS),) if self._record["has_links"] else ()

    def has(self, split: Split) -> bool:
        """Whether the text had the split; a validation set may be of its training text."""
        return split in self._record["digests"]

    def pairs(self, split: Split, languages: Languages) -> Iterator[Pair]:
        """The pairs, those of "train" without what filters leave out."""
        self._check(split, languages)
        is_turned = languages != self.languages
        has_documents, last = self.has_documents, None  # read from a file: once, not for each row
        for number, (source, target) in self._rows(split):
            if has_documents and last not in (None, number):
                yield BOUNDARY
            last = number
            yield (target, source) if is_turned else (source, target)
        if has_documents:
            yield BOUNDARY

    def fingerprint(self, split: Split, languages: Languages) -> str:
        """A hash of what the folder says about its text, which is not read."""
        self._check(split, languages)
        digest = self._record["digests"][split]
        return hashlib.sha256(f"prepared {digest} {split} {languages}".encode()).hexdigest()

    def _rows(self, split: Split) -> Iterator[Numbered]:
        folder = corpus_folder(Path(self.folder), self.corpus)
        if split != "train":
            for number, source, target, _ in read_lines(folder / f"{split}.jsonl.gz"):
                yield number, (source, target)
            return
        sizes = self._record["sizes"]
        kept = np.split(read_kept(folder, sizes), np.cumsum(sizes))  # the last one is empty
        for number, size in enumerate(sizes):
            path = part_folder(folder, number) / "text.jsonl.gz"
            rows = zip(read_lines(path), kept[number].tolist(), strict=True)
            try:
                for (document, source, target, _), is_kept in rows:
                    if is_kept:
                        yield document, (source, target)
            except ValueError:
                raise _damaged(path, f"not {size} pairs") from None

    def _check(self, split: Split, languages: Languages) -> None:
        if not self.has(split):
            raise missing(split, f"the text that was prepared in {self.folder} one")
        known = self._record["languages"]
        if sorted(languages) != sorted(known):
            raise UserError(f"{self.folder}: prepared for {'-'.join(known)}, not for {languages}")

    @property
    def _record(self) -> dict[str, Any]:
        corpora = read_merged(self.folder)["corpora"]
        if self.corpus >= len(corpora):
            raise UserError(f"{self.folder}: it has {len(corpora)} corpora, no {self.corpus}")
        return dict(corpora[self.corpus])


def read_merged(folder: str | Path) -> dict[str, Any]:
    """What `prepare` wrote last into its folder.

    Raises:
        UserError: there is nothing, or it is damaged.
    """
    path = Path(folder) / "merged.json"
    try:
        record = json.loads(path.read_text(encoding="utf-8"))
        whole = record["format"] == FORMAT and isinstance(record["corpora"], list)
    except FileNotFoundError:
        raise UserError(
            f"{folder}: not a prepared text, or not whole yet: `transformer-jax prepare --merge` "
            "writes merged.json last"
        ) from None
    except (OSError, ValueError, KeyError, TypeError, RecursionError):
        whole = False
    if not whole:
        raise UserError(f"{path}: damaged, or of another version: prepare the text again")
    return dict(record)


def corpus_folder(folder: Path, number: int) -> Path:
    """Where the text of a corpus is."""
    return folder / f"corpus_{number}"


def part_folder(folder: Path, number: int) -> Path:
    """Where a part of a corpus is."""
    return folder / f"part_{number:06}"


def read_kept(folder: Path, sizes: Sequence[int]) -> np.ndarray:
    """Of each pair of a corpus, whether it is used: [pairs] bool.

    Args:
        folder: of the corpus.
        sizes: pairs of its parts.

    Raises:
        UserError: the file is missing or damaged.
    """
    path = folder / "kept.bin"
    if not path.exists() or path.stat().st_size != sum(sizes):
        raise UserError(f"{path}: damaged: run `transformer-jax prepare --merge` again")
    return np.fromfile(path, bool)


def read_lines(path: Path) -> Iterator[tuple[int, str, str, str]]:
    """The lines of a file: the number of the document, the pair, and the links of its words.

    Raises:
        UserError: it is missing or damaged.
    """
    try:
        with gzip.open(path, "rt", encoding="utf-8", newline="\n") as lines:
            for number, source, target, *links in map(json.loads, lines):
                yield number, source, target, "".join(links)
    except (OSError, EOFError, ValueError, TypeError, zlib.error) as error:
        raise _damaged(path, error) from None


def _damaged(path: Path, why: object) -> UserError:
    return UserError(f"{path}: damaged ({why}): prepare this part again")
