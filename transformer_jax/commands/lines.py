"""Lines of standard input, standard output and files; only LF ends a line."""

import sys
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import islice
from typing import Any, BinaryIO, NamedTuple, TypeVar

from transformer_jax.errors import UserError

T = TypeVar("T")


def stdin_lines() -> Iterator[str]:
    """The lines of standard input without their ends, LF or CR LF.

    Raises:
        UserError: bytes that are not UTF-8; names the line.
    """
    from transformer_jax.data.sources.files import decode_lines

    return decode_lines(sys.stdin.buffer, "standard input")


class Document(NamedTuple):
    """Lines of a document; the last one may be empty, which ends it."""

    first: int  #: the number of its first line, from 1
    lines: list[str]


def documents_of(lines: Iterable[str]) -> Iterator[Document]:
    """The documents of a text, in which a line without text ends one. Each line is in one."""
    document = Document(1, [])
    for line in lines:
        document.lines.append(line)
        if not line.strip():
            yield document
            document = Document(document.first + len(document.lines), [])
    if document.lines:
        yield document


#: What is counted while a text is answered, by name: `cut` inputs were longer than the limit.
Counts = Mapping[str, int]
#: (a chunk of inputs, number of inputs before it) -> (lines, what was counted in the chunk).
Reply = Callable[[list[T], int], tuple[list[str], Counts]]


class Output:
    """A file, or standard output, that takes replies as UTF-8.

    Attributes:
        done: inputs whose replies are there.
        counts: what was counted in them.
    """

    def __init__(self, file: BinaryIO, done: int = 0, counts: Counts | None = None) -> None:
        self.file, self.done, self.counts = file, done, Counter(counts)

    def write(self, lines: Sequence[str], inputs: int, counts: Counts) -> None:
        """Writes the lines of the reply to the next inputs, and flushes."""
        self.file.write("".join(line + "\n" for line in lines).encode("utf-8"))
        self.file.flush()
        self.done += inputs
        self.counts.update(counts)


def note(text: str) -> None:
    """Prints a line for the user, beside what the command answers."""
    print(text, file=sys.stderr)


def bar_interval() -> float:
    """Seconds after which a progress bar is drawn again: a line a minute where nobody watches."""
    return 0.5 if sys.stderr.isatty() else 60.0


def answer(
    output: Output, items: Iterator[T], chunk_size: int, reply: Reply[T], total: int | None = None
) -> int:
    """Writes the reply to each chunk of items; standard error tells how many were cut.

    Returns the exit status: 1 if a score was not a finite number.

    Args:
        output: where to.
        items: lines, or pairs of them, that are not done yet.
        chunk_size: how many items a chunk has; the last one may have fewer.
        reply: to a chunk.
        total: the number of items, those that are done included: standard error shows how far it
            is. None: it does not.
    """
    from tqdm import tqdm

    shown: Any = {"unit": " lines", "mininterval": bar_interval(), "disable": total is None}
    with tqdm(total=total, initial=output.done, **shown) as bar:
        while chunk := list(islice(items, chunk_size)):
            lines, counts = reply(chunk, output.done)
            output.write(lines, len(chunk), counts)
            bar.update(len(chunk))
    inputs = output.counts["sentences"] or output.done
    if cut := output.counts["cut"]:
        limit = "longer than --max_source_length or the model takes, and cut"
        note(f"note: {cut} of {inputs} inputs were {limit}")
    if lost := output.counts["not_finite"]:
        what = "not finite numbers: most likely the model's parameters are damaged"
        note(f"error: the scores of {lost} of {inputs} inputs are {what}")
    return int(lost > 0)


def file_pairs(**files: str | None) -> list[tuple[str, str]]:
    """The pairs of lines of two files.

    Args:
        files: the two names, by flag: `file_pairs(source="a.en", reference="a.de")`.

    Raises:
        UserError: one of them is not given, cannot be read, or has more lines than the other.
    """
    from transformer_jax.data.sources.files import read_parallel

    source, target = files.values()
    if source is None or target is None:
        flags = " and ".join(f"--{flag}" for flag in files)
        raise UserError(f"{flags} belong together: give both or neither")
    return list(read_parallel(source, target))
