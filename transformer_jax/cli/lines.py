"""Lines of standard input, standard output and files; only LF ends a line."""

import sys
from collections.abc import Callable, Iterator
from itertools import islice
from typing import TYPE_CHECKING, TypeVar

from transformer_jax.errors import UserError

if TYPE_CHECKING:
    from transformer_jax.cli.output_file import OutputFile

T = TypeVar("T")


def stdin_lines() -> Iterator[str]:
    """The lines of standard input without their ends, LF or CR LF.

    Raises:
        UserError: bytes that are not UTF-8; names the line.
    """
    for number, line in enumerate(sys.stdin.buffer, start=1):
        line = line.removesuffix(b"\n").removesuffix(b"\r")
        if number == 1:
            line = line.removeprefix(b"\xef\xbb\xbf")  # a byte order mark
        try:
            yield line.decode("utf-8")
        except UnicodeDecodeError as error:
            raise UserError(
                f"standard input:{number}: not UTF-8 (byte 0x{line[error.start]:02x} at column "
                f"{error.start + 1}); convert it, e.g. with iconv -t UTF-8"
            ) from None


#: (a chunk of inputs, number of inputs before it) -> (lines, how many of the inputs were longer
#: than the limit and cut).
Reply = Callable[[list[T], int], tuple[list[str], int]]


def answer(items: Iterator[T], chunk_size: int, reply: Reply[T]) -> None:
    """Writes the reply to each chunk of items to standard output, as UTF-8, and flushes.

    Standard error tells the number of cut items at the end.

    Args:
        items: lines, or pairs of them.
        chunk_size: how many items a chunk has; the last one may have fewer.
        reply: to a chunk.
    """
    done = num_cut = 0
    while chunk := list(islice(items, chunk_size)):
        lines, cut = reply(chunk, done)
        sys.stdout.buffer.write("".join(line + "\n" for line in lines).encode("utf-8"))
        sys.stdout.buffer.flush()
        done += len(chunk)
        num_cut += cut
    _tell_cut(num_cut, done)


def answer_into(
    output: "OutputFile", items: Iterator[T], chunk_size: int, reply: Reply[T], total: int
) -> None:
    """Writes the reply to each chunk to a file; standard error shows how far it is.

    Args:
        output: the file.
        items: those that are not done yet.
        chunk_size, reply: see `answer`.
        total: number of items, those that are done included.
    """
    from tqdm import tqdm

    # A line a minute where nobody watches.
    often = 0.5 if sys.stderr.isatty() else 60.0
    with tqdm(total=total, initial=output.done, unit=" lines", mininterval=often) as bar:
        while chunk := list(islice(items, chunk_size)):
            lines, cut = reply(chunk, output.done)
            output.write(lines, len(chunk), cut)
            bar.update(len(chunk))
    _tell_cut(output.cut, output.done)


def _tell_cut(num_cut: int, done: int) -> None:
    if num_cut:
        print(
            f"note: {num_cut} of {done} inputs were longer than the limit and were cut",
            file=sys.stderr,
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
