"""Packed files: how each is opened, by the end of its name."""

import gzip
import io
import lzma
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

# Its reader refuses a file that is cut short; that of the package `zstandard` takes it for whole.
from backports import zstd


class Packing(NamedTuple):
    """A format of packed files."""

    name: str  #: for messages
    unpack: Callable[[Any], Any]  #: an open file -> a file of its content


_PLAIN = Packing("text", lambda raw: raw)
_PACKINGS = {
    ".gz": Packing("gzip", lambda raw: gzip.GzipFile(fileobj=raw)),
    ".xz": Packing("xz", lzma.LZMAFile),
    ".zst": Packing("zstd", zstd.ZstdFile),
}
#: What reading a packed file raises that is damaged or cut short.
DAMAGE = (EOFError, gzip.BadGzipFile, zlib.error, lzma.LZMAError, zstd.ZstdError)


def packing(path: str | Path) -> Packing:
    """How a file is packed, by the end of its name; that of text is none."""
    return _PACKINGS.get(Path(str(path).lower()).suffix, _PLAIN)


def unpacked(path: str | Path, raw: BinaryIO) -> BinaryIO:
    """The content of an open file. If it is damaged, reading it raises one of `DAMAGE`."""
    content = packing(path).unpack(raw)
    return raw if content is raw else io.BufferedReader(content, 1 << 18)  # lines in C


def suffix(path: str | Path) -> str:
    """The ending that says what a file holds, packed or not: `a.TSV.gz` -> `.tsv`."""
    name = Path(str(path).lower())
    return Path(name.stem).suffix if name.suffix in _PACKINGS else name.suffix
