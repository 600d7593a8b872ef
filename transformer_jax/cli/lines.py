"""Lines of standard input, standard output and files; only LF ends a line."""

import sys
from collections.abc import Iterator
from itertools import islice
from typing import TypeVar

from transformer_jax.errors import UserError

T = TypeVar("T")

_BYTE_ORDER_MARK = b"\xef\xbb\xbf"


def stdin_lines() -> Iterator[str]:
    """The lines of standard input without their ends, LF or CR LF.

    Raises:
      UserError: bytes that are not UTF-8; names the line.
    """
    for number, line in enumerate(sys.stdin.buffer, start=1):
        line = line.removesuffix(b"\n").removesuffix(b"\r")
        if number == 1:
            line = line.removeprefix(_BYTE_ORDER_MARK)
        try:
            yield line.decode("utf-8")
        except UnicodeDecodeError as error:
            raise UserError(
                f"standard input:{number}: not UTF-8 (byte 0x{line[error.start]:02x} at column "
                f"{error.start + 1}); convert it, e.g. with iconv -t UTF-8"
            ) from None


def chunks(lines: Iterator[T], size: int) -> Iterator[list[T]]:
    """Lists of `size` items, the last one shorter."""
    while chunk := list(islice(lines, size)):
        yield chunk


def write_lines(lines: list[str]) -> None:
    """Writes lines to standard output as UTF-8, whatever the locale, and flushes."""
    sys.stdout.buffer.write("".join(line + "\n" for line in lines).encode("utf-8"))
    sys.stdout.buffer.flush()


def note_cut(num_cut: int, total: str) -> None:
    """Tells on standard error how much of the input was cut, such as of `12 lines`."""
    if num_cut:
        print(
            f"note: {num_cut} of {total} were longer than the limit and were cut", file=sys.stderr
        )


def file_pairs(**files: str | None) -> list[tuple[str, str]]:
    """The pairs of lines of two files.

    Args:
        files: the two names, by flag: `file_pairs(source="a.en", reference="a.de")`.

    Raises:
        UserError: one of them is not given, cannot be read, or has more lines than the other.
    """
    from transformer_jax.data.sources.files import read_lines

    first, second = (f"--{flag}" for flag in files)
    given = [name for name in files.values() if name is not None]
    if len(given) < 2:
        raise UserError(f"{first} and {second} belong together: give both or neither")
    sources, targets = (list(read_lines(name)) for name in given)
    if len(sources) != len(targets):
        raise UserError(
            f"{first}={given[0]} has {len(sources)} lines and {second}={given[1]} has "
            f"{len(targets)}; line n of one must translate line n of the other"
        )
    return list(zip(sources, targets, strict=True))
