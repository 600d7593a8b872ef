r"""Parallel text from files: plain, TSV (source TAB target) or JSONL, packed or not.

With `documents=true` they also tell where documents end: a plain text by an empty line on both
sides, TSV by a change in a third column, JSONL by a change of the key "document". So does the end
of each file.

Only "\n" and "\r\n" end a line. U+2028, U+0085, vertical tabs and the like are part of the
sentence, as they are for `wc -l` and for the tools that write such files.

A file is hashed while it is read, so that the fingerprint of a text that was just read costs
nothing.
"""

import hashlib
import io
import math
import os
import re
import time
from collections.abc import Generator, Iterable, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass
from itertools import zip_longest
from pathlib import Path
from typing import Annotated, Any

from transformer_jax.data.sources.base import (
    BOUNDARY,
    Languages,
    Pair,
    Source,
    Split,
    missing,
)
from transformer_jax.data.sources.json_lines import (
    json_field,
    read_json,
    refuse_half_characters,
)
from transformer_jax.data.sources.packed import DAMAGE, packing, suffix, unpacked
from transformer_jax.errors import UserError
from transformer_jax.settings.types import USUAL, FileNames

_BYTE_ORDER_MARK = b"\xef\xbb\xbf"
_TWO_COLUMNS = "source TAB target"
_LANGUAGE_ENDING = r"\.([a-z]{2})"  # train.en


@dataclass(frozen=True)
class Files(Source):
    """Text files, read line by line in parallel.

    Each `*_source` file has a `*_target` file with as many lines. A `.tsv` file (source TAB
    target) or `.jsonl` file (one object a line, with the language codes as keys) holds both
    sides and is named in `*_source` alone. Files that end in `.gz`, `.xz` or `.zst` are unpacked on
    the fly.

    With `documents`, a document ends where a file does; in plain text also at an empty line on
    both sides, in TSV where the third column changes, in JSONL where the key "document" does.
    """

    train_source: Annotated[FileNames, USUAL] = ()  #: files of training text to translate from
    train_target: Annotated[FileNames, USUAL] = ()
    #: their translations; empty for .tsv and .jsonl files
    train_alignment: FileNames = ()
    #: their word alignments, 0-0 1-2 a line, for train.alignment_weight; empty = there are none
    validation_source: Annotated[FileNames, USUAL] = ()
    #: files of text that is translated during training
    validation_target: Annotated[FileNames, USUAL] = ()  #: their translations
    test_source: Annotated[FileNames, USUAL] = ()  #: files of text for the final score
    test_target: Annotated[FileNames, USUAL] = ()  #: their translations
    documents: bool = False  #: whether the files tell where documents end, in one of these ways

    @property
    def has_documents(self) -> bool:
        """Whether they tell where documents end, as `documents` says."""
        return self.documents

    @property
    def alignments(self) -> tuple[str, ...]:
        """The files of `train_alignment`."""
        return self.train_alignment

    @property
    def languages(self) -> tuple[str | None, str | None]:
        """The endings of the training files, as in train.en and train.de.

        Raises:
            UserError: there are none.
        """
        if not self.train_source:
            raise UserError(
                "no training text: give data.source.train_source and data.source.train_target "
                "(files), or another source such as data.source='tfds(name=wmt14_translate/de-en)'"
            )
        return _ending(self.train_source), _ending(self.train_target)

    def has(self, split: Split) -> bool:
        """Whether files are named.

        Raises:
            UserError: one is missing, or the two lists don't go together.
        """
        sources, targets = self._files(split)
        key = f"data.source.{split}"
        for path in targets:
            if _is_pair_file(path):
                raise UserError(
                    f"{key}_target={path}: a TSV or JSONL file holds both languages; "
                    f"give it in {key}_source alone"
                )
        plain = [path for path in sources if not _is_pair_file(path)]
        if len(plain) != len(targets):
            raise UserError(
                f"{key}_source names {len(plain)} plain text file(s) and {key}_target "
                f"{len(targets)}; give one target file for each plain source file (only a TSV or "
                "JSONL file holds both languages)"
            )
        for side in ("source", "target", "alignment"):  # of which only "train" has the last
            for path in getattr(self, f"{split}_{side}", ()):
                if not os.path.exists(path):
                    hint = "; copy it to this machine" if "://" in path else ""
                    raise UserError(f"{path}: no such file ({key}_{side}){hint}")
        return bool(sources)

    def pairs(self, split: Split, languages: Languages) -> Iterator[Pair]:
        """The pairs of the files, one file after the other.

        The plain source files and the target files are paired in their order. A line end inside a
        JSON string becomes a space, because a sentence is one line everywhere else.
        """
        sources, targets = self._existing(split)
        rest, form = iter(targets), _TWO_COLUMNS + " TAB document" * self.documents
        for path in sources:
            if suffix(path) == ".tsv":
                yield from _cut_at_changes(split_tabs(read_lines(path), path, form))
            elif suffix(path) == ".jsonl":
                rows = _read_jsonl(path, languages, self.documents)
                yield from _cut_at_changes(row for row, _ in rows)
            else:
                pairs = read_parallel(path, next(rest))
                yield from map(_boundary_if_blank, pairs) if self.documents else pairs
            if self.documents:
                yield BOUNDARY

    def fingerprint(self, split: Split, languages: Languages) -> str:
        """A hash of the files' bytes; their names and dates don't matter."""
        sources, targets = self._existing(split)
        content = hashlib.sha256(b"documents" * self.documents)
        for path in (*sources, "", *targets):
            content.update(f"{file_digest(path) if path else ''}\n".encode())
            if path and _is_pair_file(path):
                content.update(f"{suffix(path)[1:]} {'>'.join(languages)}\n".encode())
        return content.hexdigest()

    def texts(self, languages: Languages) -> list[tuple[str, str]]:
        """The digests of the files; those of two plain files together."""
        sources, targets = self._existing("train")
        rest, keys = iter(targets), []
        for path in sources:
            key = [file_digest(path)]
            if suffix(path) == ".jsonl":  # it may have other languages, too
                key += languages
            elif not _is_pair_file(path):
                key.append(file_digest(next(rest)))
            keys.append((" ".join(sorted(key)), f"documents={self.documents}"))
        return keys

    def _files(self, split: Split) -> tuple[tuple[str, ...], tuple[str, ...]]:
        return getattr(self, f"{split}_source"), getattr(self, f"{split}_target")

    def _existing(self, split: Split) -> tuple[tuple[str, ...], tuple[str, ...]]:
        if not self.has(split):
            raise missing(split, f"data.source.{split}_source and data.source.{split}_target")
        return self._files(split)


def _ending(paths: tuple[str, ...]) -> str | None:
    found = (re.fullmatch(_LANGUAGE_ENDING, suffix(path)) for path in paths)
    endings = {match[1] for match in found if match}
    return endings.pop() if len(endings) == 1 else None


def _is_pair_file(path: str) -> bool:
    """Whether a file holds both languages, by its name."""
    return suffix(path) in (".tsv", ".jsonl")


def read_lines(path: str | Path) -> Generator[str, None, None]:
    """Yields the lines of a UTF-8 file without their ends, unpacked on the fly.

    Raises:
        UserError: the file is missing, empty, unreadable, damaged if it is packed, or not UTF-8
            (with the number of the line).
    """
    number = 0
    try:
        with io.BufferedReader(_HashedFile(path), 1 << 18) as raw:
            for text in decode_lines(unpacked(path, raw), path):
                number += 1
                yield text
    except DAMAGE as error:
        kind = packing(path).name
        raise UserError(f"{path}: damaged {kind} file after line {number} ({error})") from None
    except OSError as error:
        raise _unreadable(path, error) from None
    if number == 0:
        raise UserError(f"{path}: the file is empty, expected one sentence a line")


def decode_lines(lines: Iterable[bytes], name: str | Path) -> Iterator[str]:
    """The lines as text, without their ends and a byte order mark.

    Raises:
        UserError: bytes that are not UTF-8; names the line.
    """
    for number, line in enumerate(lines, start=1):
        line = line.removesuffix(b"\n").removesuffix(b"\r")
        if number == 1:
            line = line.removeprefix(_BYTE_ORDER_MARK)
        try:
            yield line.decode("utf-8")
        except UnicodeDecodeError as error:
            raise UserError(
                f"{name}:{number}: not UTF-8 (byte 0x{line[error.start]:02x} at column "
                f"{error.start + 1}); convert it, e.g. with iconv -t UTF-8"
            ) from None


def _unreadable(path: str | Path, error: OSError) -> UserError:
    hint = "; texts are files on this machine: copy it first" if "://" in str(path) else ""
    return UserError(f"{path}: cannot be read ({(error.strerror or str(error)).lower()}){hint}")


#: SHA-256 of files that were read, by what os.stat says about them.
_DIGESTS: dict[tuple[Any, ...], str] = {}
_SURE_AFTER = 2.0  # seconds; a file changed twice within a clock tick would look unchanged


def file_digest(path: str | Path) -> str:
    """SHA-256 of a file's bytes, from memory where this process has read the file to its end.

    Raises:
        UserError: the file cannot be read.
    """
    try:
        if known := _DIGESTS.get(_identity(os.stat(path))):
            return known
        with _HashedFile(path) as file:
            buffer = bytearray(1 << 20)
            while file.readinto(buffer):
                pass
            return file.digest()
    except OSError as error:
        raise _unreadable(path, error) from None


def _identity(stat: os.stat_result) -> tuple[Any, ...]:
    return stat.st_dev, stat.st_ino, stat.st_size, stat.st_mtime_ns


class _HashedFile(io.FileIO):
    """A file opened for reading; at its end, the digest of its bytes is remembered.

    Bytes whose digest is known are not hashed again.
    """

    def __init__(self, path: str | Path) -> None:
        super().__init__(path, "rb")
        self._stat = os.fstat(self.fileno())
        self._hash, self._hashed = hashlib.sha256(), 0
        self._known = _DIGESTS.get(_identity(self._stat))

    def readinto(self, buffer: Any) -> int:
        count = super().readinto(buffer) or 0
        if self._known:
            return count
        self._hash.update(memoryview(buffer)[:count])
        self._hashed += count
        if not count and self._hashed == self._stat.st_size:
            key = _identity(os.fstat(self.fileno()))
            if key == _identity(self._stat) and time.time() - self._stat.st_mtime > _SURE_AFTER:
                _DIGESTS[key] = self.digest()
        return count

    def digest(self) -> str:
        """SHA-256 of what has been read, or of the whole file if that is known."""
        return self._known or self._hash.hexdigest()


def read_parallel(source_path: str, target_path: str) -> Iterator[Pair]:
    """Yields line n of one file with line n of the other; `UserError` if one has more."""
    with closing(read_lines(source_path)) as sources, closing(read_lines(target_path)) as targets:
        for source, target in zip_longest(sources, targets):
            if source is None or target is None:
                counts = [sum(1 for _ in read_lines(path)) for path in (source_path, target_path)]
                raise UserError(
                    f"{source_path} has {counts[0]} lines and {target_path} has {counts[1]}; "
                    "parallel files need the same number of lines"
                )
            yield source, target


def _boundary_if_blank(pair: Pair) -> Pair:
    return pair if pair[0].strip() or pair[1].strip() else BOUNDARY


def _cut_at_changes(rows: Iterable[Sequence[Any]]) -> Iterator[Pair]:
    """The pairs of rows (source, target, document), with a boundary where the document changes.

    Without documents the rows are (source, target). With them an empty row is none: as a pair it
    would be a boundary.
    """
    last = None
    for source, target, *document in rows:
        if document and (source, target) == BOUNDARY:
            continue
        if document != last and last is not None:
            yield BOUNDARY
        last = document
        yield source, target


def split_tabs(
    lines: Iterable[str], name: str | Path, form: str = _TWO_COLUMNS, *, last_may_lack: bool = False
) -> Iterator[Any]:
    """The columns of each line, as a list.

    Raises:
        UserError: a line has not as many as the form.
    """
    most = form.count("TAB")
    for number, line in enumerate(lines, start=1):
        fields = line.split("\t")
        if not most - last_may_lack <= (tabs := len(fields) - 1) <= most:
            raise UserError(f"{name}:{number}: expected {form}, got {tabs} tabs")
        yield fields


def read_scored(path: str, languages: Languages) -> Iterator[tuple[str, str, float]]:
    """Yields source, translation and score, 0 where there is none, of a TSV or JSONL file.

    The score is the third column, or under the key "score".

    Raises:
        UserError: the file is neither, or a line has another form.
    """
    if not _is_pair_file(path):
        raise UserError(
            f"{path}: its name must end in .tsv or .jsonl, or that and .gz, .xz or .zst"
        )
    if suffix(path) == ".tsv":
        form = "source TAB translation, and TAB score if there is one"
        fields = split_tabs(read_lines(path), path, form, last_may_lack=True)
        rows = ([*row, ""][:3] for row in fields)
    else:
        rows = ([*row, more.get("score")] for row, more in _read_jsonl(path, languages))
    for number, (source, translation, score) in enumerate(rows, start=1):
        try:
            # Python alone reads True and 1_0 as numbers.
            value = 0.0 if score in (None, "") else float(str(score).replace("_", "?"))
        except ValueError:
            value = math.nan
        if not math.isfinite(value):
            raise UserError(f"{path}:{number}: the score {score!r} is not a number")
        yield source, translation, value


def _read_jsonl(
    path: str, languages: Languages, documents: bool = False
) -> Iterator[tuple[list[Any], dict[str, Any]]]:
    """Yields the texts, with the document where that is asked for, and the whole record."""
    for number, line in enumerate(read_lines(path), start=1):
        place = f"{path}:{number}"
        record = read_json(line, place)
        row = [_json_text(record, key, place) for key in languages]
        if documents:
            needs = ", which data.source.documents=true needs"
            row.append(json_field(record, "document", place, object, needs))
        yield row, record


def _json_text(record: Any, key: str, place: str) -> Any:
    advice = "; data.source_language and data.target_language name the keys"
    text = json_field(record, key, place, str, advice)
    refuse_half_characters(text, f'{place}: "{key}"')
    return text.replace("\r\n", " ").replace("\n", " ")
