"""Arrays of ids on disk: the parts of a text, and the entries of the cache.

An entry is a folder of raw little-endian arrays and `meta.json`; nothing is pickled. It has the ids
of all sentences one after the other, without BOS or EOS, and the sentences' lengths. The folder's
name is a hash of the text's fingerprint and of both tokenizers. For blocks, each sentence is
followed by the separator, or by EOS at the end of a document: any range of sentences of a document
is then a slice of the ids, so that blocks copy nothing. An entry is written under a temporary name
and renamed, so readers see all of it or nothing, and two processes can make the same entry at the
same time. `meta.json` has the fingerprint of the content, which a training computes at its start
anyway, so an entry whose bytes changed is made again.
"""

import contextlib
import errno
import hashlib
import json
import shutil
import time
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np

from transformer_jax.data.sampling import NBEST
from transformer_jax.data.sentences import Arrays, IdCorpus, PieceLinks, Sentences, in_pages
from transformer_jax.data.tokenizer_pair import Tokenizers
from transformer_jax.errors import UserError
from transformer_jax.paths import new_folder

#: Of each array its dtype and size; its values are in a file of its name.
Layout = dict[str, tuple[str, int]]

_FORMAT = 7
_LEFT_AFTER = 24 * 60 * 60  # seconds without a write, after which no process is writing an entry
_NO_WRITE = (errno.ENOSPC, errno.EDQUOT, errno.EACCES, errno.EROFS, errno.EPERM)


class Part(NamedTuple):
    """Some arrays in the files of a folder."""

    folder: Path
    layout: Layout

    def read(self) -> Arrays:
        """The arrays, memory-mapped.

        Raises:
            OSError, ValueError: a file is missing or too short.
        """
        mapped: Arrays = {}
        for name, (dtype, size) in self.layout.items():
            mapped[name] = np.zeros(0, dtype)  # an empty file cannot be mapped
            if size:
                mapped[name] = np.memmap(self.folder / f"{name}.bin", dtype, "r", shape=(size,))
        return mapped

    @classmethod
    def write(cls, folder: Path, chunks: Iterable[Arrays]) -> "Part":
        """Appends chunks of arrays to one file for each."""
        layout: Layout = {}
        for chunk in chunks:
            for name, values in chunk.items():
                with open(folder / f"{name}.bin", "ab") as file:
                    file.write(values.tobytes())
                _, size = layout.get(name, ("", 0))
                layout[name] = (values.dtype.str, size + len(values))
        return cls(folder, layout)


class Entry(NamedTuple):
    """What an entry of the cache holds."""

    corpus: IdCorpus
    found: list[str]  #: what filters found in each corpus, as lines for the log


def read_entry(folder: Path) -> Entry | None:
    """Memory-maps an entry; None where it is missing, incomplete or changed."""
    try:
        meta = json.loads((folder / "meta.json").read_text())
        if meta["format"] != _FORMAT:
            return None
        corpus = corpus_of(Part(folder, meta["arrays"]).read())
        whole = corpus.fingerprint == meta["fingerprint"]
        return Entry(corpus, [str(line) for line in meta["found"]]) if whole else None
    except (OSError, ValueError, KeyError, TypeError):
        return None


def write_entry(folder: Path, chunks: Iterable[Arrays], found: Sequence[str] = ()) -> None:
    """Writes an entry; a whole one that another process has made meanwhile stays.

    Args:
        folder: of the entry.
        chunks: parts of the arrays, in their order.
        found: see `Entry`.

    Raises:
        UserError: the folder cannot be written, or the disk is full.
    """
    with writing(folder.parent):
        _remove_leftovers(folder.parent)
        with new_folder(folder, lambda: read_entry(folder) is not None) as temporary:
            part = _with_offsets(Part.write(temporary, chunks))
            meta = {
                "format": _FORMAT,
                "arrays": part.layout,
                "fingerprint": corpus_of(part.read()).fingerprint,
                "found": list(found),
            }
            (temporary / "meta.json").write_text(json.dumps(meta))  # last: it is complete


@contextlib.contextmanager
def writing(cache: Path) -> Iterator[None]:
    """Makes the cache folder, and says in one line what is wrong where it can't be written.

    Raises:
        UserError: the user can help.
    """
    try:
        cache.mkdir(parents=True, exist_ok=True)
        yield
    except OSError as error:
        if error.errno not in _NO_WRITE:
            raise
        raise UserError(
            f"cannot write the id cache in {cache}: {error.strerror}; "
            "free some space or set data.cache_dir to another folder"
        ) from None


def entry_name(
    tokenizers: Tokenizers, key: str, sampling_alpha: float | None = None, joined: bool = False
) -> str:
    """The folder name of an entry: a hash of everything that its content depends on."""
    parts = [str(_FORMAT), key, tokenizers.source.fingerprint, tokenizers.target.fingerprint]
    if sampling_alpha:
        parts.append(f"sampling {sampling_alpha!r} of {NBEST}")
    if joined:
        parts.append("joined")
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()[:32]


def _remove_leftovers(cache: Path) -> None:
    """Removes the temporary folders of processes that were killed."""
    for folder in cache.glob(f".{32 * '[0-9a-f]'}.*"):
        with contextlib.suppress(OSError):  # another process removes it too
            written = max(path.stat().st_mtime for path in (folder, *folder.rglob("*")))
            if written < time.time() - _LEFT_AFTER:
                shutil.rmtree(folder)


def corpus_of(arrays: Arrays) -> IdCorpus:
    """The corpus in the arrays of an entry."""
    sides: dict[str, Arrays] = {"source": {}, "target": {}, "corpus": {}, "links": {}}
    for name, values in arrays.items():
        side, _, array = name.partition("_")
        sides[side][array] = values
    sizes = tuple(sides["corpus"]["sizes"].tolist())
    links = PieceLinks(sides["links"]) if sides["links"] else None
    return IdCorpus(Sentences(sides["source"]), Sentences(sides["target"]), sizes, links)


def _with_offsets(part: Part) -> Part:
    """Replaces the files of lengths by those of offsets, which need no memory as mapped files."""
    layout, arrays = dict(part.layout), part.read()
    for name in [name for name in layout if name.endswith("lengths")]:
        new, end = name.replace("lengths", "offsets"), np.zeros(1, "<i8")
        with open(part.folder / f"{new}.bin", "wb") as file:
            file.write(end.tobytes())
            for lengths in in_pages(arrays[name]):
                offsets = end + np.cumsum(lengths, dtype="<i8")
                file.write(offsets.tobytes())
                end = offsets[-1:]
        (part.folder / f"{name}.bin").unlink(missing_ok=True)
        layout[new] = "<i8", layout.pop(name)[1] + 1
    return Part(part.folder, layout)
