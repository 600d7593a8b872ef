"""Arrays of ids on disk: the parts of a text, and the entries of the cache.

An entry is a folder of raw little-endian arrays and `made_of.json`; nothing is pickled. It has the
ids of all sentences one after the other, without BOS or EOS, and the sentences' lengths. Its name
is a hash of the text's fingerprint and of both tokenizers. For blocks, each sentence is followed by
the separator, or by EOS at the end of a document: any range of sentences of a document is then a
slice of the ids, so that blocks copy nothing. An entry is a stage (`paths.py`): readers see all of
it or nothing, and a start that was killed is continued. The fingerprint of its content is known,
and a training computes it at its start anyway, so an entry whose bytes changed is made again.
"""

import hashlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from etils import epath

from transformer_jax.data.sampling import NBEST
from transformer_jax.data.sentences import Arrays, IdCorpus, PieceLinks, Sentences
from transformer_jax.data.tokenizer_pair import Tokenizers
from transformer_jax.errors import UserError
from transformer_jax.paths import made, remove_folder, stage, temporary_name

#: Of each array its dtype and size; its values are in a file of its name.
Layout = dict[str, tuple[str, int]]

#: What names the cache.
FLAG = "data.cache_dir"
_FORMAT = 8


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
        """Writes chunks of arrays, one file for each."""
        layout: Layout = {}
        for chunk in chunks:
            for name, values in chunk.items():
                mode = "ab" if name in layout else "wb"  # a killed process may have left one
                with open(folder / f"{name}.bin", mode) as file:
                    file.write(values.tobytes())
                _, size = layout.get(name, ("", 0))
                layout[name] = (values.dtype.str, size + len(values))
        return cls(folder, layout)


def read_entry(folder: Path) -> tuple[IdCorpus, list[str]] | None:
    """An entry, memory-mapped, and what filters found in each corpus, as lines for the log.

    None where it is missing, incomplete or changed.
    """
    try:
        known = made(epath.Path(folder), {}, flag=FLAG) or {}
        corpus = corpus_of(Part(folder, known["arrays"]).read())
        whole = corpus.fingerprint == known["fingerprint"]
        return (corpus, [str(line) for line in known["found"]]) if whole else None
    except (UserError, OSError, ValueError, KeyError, TypeError):
        return None


def write_entry(
    folder: Path, make: Callable[[Path], tuple[Iterable[Arrays], Sequence[str]]]
) -> None:
    """Writes an entry; a whole one that another process has made meanwhile stays.

    Args:
        folder: of the entry.
        make: the parts of the arrays in their order, and what filters found. It may write
            to the folder `parts` in the folder that it is called with.

    Raises:
        UserError: the folder cannot be written, or the disk is full.
    """

    def fill(place: epath.Path) -> dict[str, Any]:
        chunks, found = make(Path(place))
        part = Part.write(Path(place), with_offsets(chunks))
        if (parts := place / "parts").exists():
            remove_folder(parts.rename(temporary_name(parts)))
        fingerprint = corpus_of(part.read()).fingerprint
        return {"arrays": part.layout, "fingerprint": fingerprint, "found": list(found)}

    stage(
        epath.Path(folder), {}, fill, flag=FLAG, is_whole=lambda _: read_entry(folder) is not None
    )


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


def corpus_of(arrays: Arrays) -> IdCorpus:
    """The corpus in the arrays of an entry."""
    sides: dict[str, Arrays] = {"source": {}, "target": {}, "corpus": {}, "links": {}}
    for name, values in arrays.items():
        side, _, array = name.partition("_")
        sides[side][array] = values
    sizes = tuple(sides["corpus"]["sizes"].tolist())
    links = PieceLinks(sides["links"]) if sides["links"] else None
    return IdCorpus(Sentences(sides["source"]), Sentences(sides["target"]), sizes, links)


def with_offsets(chunks: Iterable[Arrays]) -> Iterator[Arrays]:
    """Chunks with the offsets that lengths give, which need no memory as mapped files.

    The first offset, 0, is in the first chunk.
    """
    ends: dict[str, int] = {}
    for chunk in chunks:
        made: Arrays = {}
        for array, values in chunk.items():
            name = array.replace("lengths", "offsets")
            if name == array:
                made[name] = values
                continue
            offsets = np.cumsum(np.append(ends.get(name, 0), values), dtype="<i8")
            made[name] = offsets[1:] if name in ends else offsets
            ends[name] = offsets[-1]
        yield made
