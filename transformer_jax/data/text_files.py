r"""Parallel text from files: plain, TSV (source TAB target) or JSONL, gzipped or not.

Only "\n" and "\r\n" end a line. U+2028, U+0085, vertical tabs and the like are
part of the sentence, as they are for `wc -l` and for the tools that made the files.
"""

import gzip
import json
import zlib
from collections.abc import Generator, Iterator, Sequence
from contextlib import closing
from pathlib import Path
from typing import IO, cast

from transformer_jax.errors import UserError

_BYTE_ORDER_MARK = b"\xef\xbb\xbf"
_PAIR_SUFFIXES = (".tsv", ".jsonl")


def is_pair_file(path: str | Path) -> bool:
    """Whether a file holds both languages by its name: `.tsv` or `.jsonl`, `.gz` or not."""
    return _suffix(path) in _PAIR_SUFFIXES


def read_lines(path: str | Path) -> Generator[str, None, None]:
    """Yields the lines of a UTF-8 file without their ends; `.gz` is unpacked on the fly.

    Raises:
      UserError: the file is missing, empty, unreadable, a damaged gzip file, or
        not UTF-8 (with the number of the line).
    """
    number = 0
    try:
        with _open(path) as file:
            for number, line in enumerate(file, start=1):
                line = line.removesuffix(b"\n").removesuffix(b"\r")
                if number == 1:
                    line = line.removeprefix(_BYTE_ORDER_MARK)
                yield line.decode("utf-8")
    except UnicodeDecodeError as error:
        raise UserError(
            f"{path}:{number}: not UTF-8 (byte 0x{error.object[error.start]:02x} at column "
            f"{error.start + 1}); convert the file, e.g. with iconv -t UTF-8"
        ) from None
    except FileNotFoundError:
        raise UserError(f"{path}: no such file") from None
    except IsADirectoryError:
        raise UserError(f"{path}: is a folder, expected a file") from None
    except PermissionError:
        raise UserError(f"{path}: permission denied; this file cannot be read") from None
    except (EOFError, gzip.BadGzipFile, zlib.error) as error:
        raise UserError(f"{path}: damaged gzip file after line {number} ({error})") from None
    except OSError as error:
        raise UserError(f"{path}: cannot be read ({error.strerror or error})") from None
    if number == 0:
        raise UserError(f"{path}: the file is empty, expected one sentence a line")


def read_pairs_from_files(
    source_paths: Sequence[str],
    target_paths: Sequence[str],
    source_language: str,
    target_language: str,
    *,
    key: str = "data.train",
) -> Iterator[tuple[str, str]]:
    """Yields (source, target) sentences of one or several files, in their order.

    A plain source file goes with the target file in the same place of the list; a
    TSV or JSONL source file holds both sides and has no target file. A line end
    inside a JSON string becomes a space: a sentence is one line everywhere else.

    Args:
      source_paths: files of the source language, or of pairs.
      target_paths: files of the target language, one for each plain source file.
      source_language: key of the source sentence in JSONL objects.
      target_language: key of the target sentence in JSONL objects.
      key: config key to name in errors, without `_source` and `_target`.

    Raises:
      UserError: the lists do not go together, a pair of files has unequal numbers
        of lines (both are given), a line is not a pair, or `read_lines` failed.
    """
    for path in target_paths:
        if is_pair_file(path):
            raise UserError(
                f"{key}_target={path}: a TSV or JSONL file holds both languages; "
                f"give it in {key}_source alone"
            )
    plain = [path for path in source_paths if not is_pair_file(path)]
    if len(plain) != len(target_paths):
        raise UserError(
            f"{key}_source names {len(plain)} plain text file(s) and {key}_target "
            f"{len(target_paths)}; give one target file for each plain source file"
        )
    targets = iter(target_paths)
    for path in source_paths:
        if _suffix(path) == ".tsv":
            yield from _read_tsv(path)
        elif _suffix(path) == ".jsonl":
            yield from _read_jsonl(path, source_language, target_language)
        else:
            yield from _read_parallel(path, next(targets))


def _suffix(path: str | Path) -> str:
    return Path(str(path).lower().removesuffix(".gz")).suffix


def _open(path: str | Path) -> IO[bytes]:
    if str(path).lower().endswith(".gz"):
        return cast(IO[bytes], gzip.open(path, "rb"))
    return open(path, "rb")


def _read_parallel(source_path: str, target_path: str) -> Iterator[tuple[str, str]]:
    with closing(read_lines(source_path)) as sources, closing(read_lines(target_path)) as targets:
        count = 0
        while True:
            source, target = next(sources, None), next(targets, None)
            if source is None and target is None:
                return
            if source is None or target is None:
                break
            count += 1
            yield source, target
        rest = 1 + sum(1 for _ in (targets if source is None else sources))
        source_count, target_count = count, count
        if source is None:
            target_count += rest
        else:
            source_count += rest
    raise UserError(
        f"{source_path} has {source_count} lines and {target_path} has {target_count}; "
        "parallel files need the same number of lines"
    )


def _read_tsv(path: str) -> Iterator[tuple[str, str]]:
    for number, line in enumerate(read_lines(path), start=1):
        fields = line.split("\t")
        if len(fields) != 2:
            raise UserError(
                f"{path}:{number}: expected source TAB target, got {len(fields) - 1} tabs"
            )
        yield fields[0], fields[1]


def _read_jsonl(path: str, source_language: str, target_language: str) -> Iterator[tuple[str, str]]:
    for number, line in enumerate(read_lines(path), start=1):
        try:
            record = json.loads(line)
        except ValueError as error:
            raise UserError(f"{path}:{number}: not JSON ({error})") from None
        except RecursionError:
            raise UserError(f"{path}:{number}: JSON nested too deeply") from None
        if not isinstance(record, dict):
            raise UserError(f"{path}:{number}: expected a JSON object, got {line[:40]}")
        yield (
            _json_text(record, source_language, path, number),
            _json_text(record, target_language, path, number),
        )


def _json_text(record: dict[str, object], key: str, path: str, number: int) -> str:
    if key not in record:
        have = ", ".join(sorted(map(str, record))) or "none"
        raise UserError(
            f'{path}:{number}: no key "{key}" (keys there: {have}); '
            "data.source_language and data.target_language name the keys"
        )
    text = record[key]
    if not isinstance(text, str):
        raise UserError(f'{path}:{number}: "{key}" must be a string, got {type(text).__name__}')
    try:
        text.encode("utf-8")
    except UnicodeEncodeError as error:  # JSON can spell what no UTF-8 text can hold
        raise UserError(
            f'{path}:{number}: "{key}" holds \\u{ord(text[error.start]):04x}, half of a character '
            "(a lone surrogate); correct the line or leave it out"
        ) from None
    return text.replace("\r\n", " ").replace("\n", " ")
