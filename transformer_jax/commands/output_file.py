"""A file of results that a second start of the same command continues.

Until all results are there, they are in the folder `<file>.partial`: `lines`, and `progress.json`
with the number of inputs that are done and the bytes that they take. What a start that was killed
wrote beyond these bytes is cut off. The finished file then gets its name at once.
"""

import contextlib
import os
import shutil
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, BinaryIO

from etils import epath

from transformer_jax.commands.lines import Counts, Output
from transformer_jax.config import from_dict
from transformer_jax.errors import UserError, as_user_error
from transformer_jax.paths import as_path, read_record, write_record
from transformer_jax.runs.lock import only_run

_FILE = "progress.json"
_COMMAND = "model, other options or another input"


@dataclass
class Progress:
    """What `progress.json` holds."""

    done: int = 0  #: inputs
    counts: dict[str, int] = field(default_factory=dict)  #: see `lines.Output`
    bytes: int = 0  #: of `lines`


class OutputFile(Output):
    """A file of results in progress."""

    def __init__(self, file: BinaryIO, path: epath.Path, command: Any, progress: Progress) -> None:
        super().__init__(file, progress.done, progress.counts)
        self._path, self._inputs = path, {_COMMAND: command}

    def write(self, lines: Sequence[str], inputs: int, counts: Counts) -> None:
        """Appends the results of the next inputs and notes them as done."""
        super().write(lines, inputs, counts)
        os.fsync(self.file.fileno())  # neither `progress.json` nor the finished file is first
        progress = {"done": self.done, "counts": self.counts, "bytes": self.file.tell()}
        write_record(self._path, self._inputs, **progress)


@contextlib.contextmanager
def output_file(name: str, command: Any) -> Iterator[OutputFile]:
    """Opens a new file or continues one; if the block ends without an error, it is finished.

    Args:
        name: of the file, which must not exist yet.
        command: what the results depend on, as JSON: a start with another is refused.

    Raises:
        UserError: the file exists, another command began it, another process writes it, or it
            cannot be written.
    """
    path = as_path(name)
    folder = path.with_name(f"{path.name}.partial")
    if path.exists():
        raise UserError(f"--output={name}: the file exists; move it away or name another")
    unwritten = as_user_error(f"--output={name}: cannot be written", OSError)
    with unwritten, only_run(folder), open(folder / "lines", "ab") as lines:
        found = read_record(folder / _FILE, {_COMMAND: command}, "--output")
        progress = from_dict(Progress, found or {})
        if lines.tell() < progress.bytes:
            raise UserError(f"{folder / 'lines'}: cut short; remove {folder} to begin again")
        lines.truncate(progress.bytes)
        lines.seek(progress.bytes)
        yield OutputFile(lines, folder / _FILE, command, progress)
        os.replace(folder / "lines", path)
        shutil.rmtree(folder, ignore_errors=True)
