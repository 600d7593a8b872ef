"""log.txt: all that the program told the user about a run, with the time of each line."""

import contextlib
import sys
from datetime import datetime
from pathlib import Path

from transformer_jax.paths import as_path
from transformer_jax.runs.growing_file import GrowingFile


class RunLog:
    """Says lines on standard error and keeps them in `<workdir>/log.txt`.

    Lines said before `open` wait for it, so that a run that is refused writes nowhere.

    Args:
        quiet: say and write nothing (all processes but the first).
    """

    def __init__(self, *, quiet: bool = False) -> None:
        self._quiet = quiet
        self._waiting: list[str] = []
        self._file: GrowingFile | None = None
        self._failed = False

    def open(self, workdir: str | Path) -> None:
        """Writes what was said so far, and from now on at once."""
        if self._quiet or self._file or self._failed:
            return
        try:
            self._file = GrowingFile(as_path(workdir) / "log.txt")
        except OSError as error:
            self._give_up(workdir, error)
        for line in self._waiting:
            self._write(line)
        self._waiting.clear()

    def say(self, text: str) -> None:
        """One line to the user and to the log."""
        if self._quiet:
            return
        from tqdm import tqdm

        tqdm.write(text, file=sys.stderr)  # goes around a progress bar
        self.keep(text)

    def keep(self, text: str) -> None:
        """To the log alone: the user has been told, or will be."""
        if self._quiet:
            return
        stamp = f"{datetime.now():%Y-%m-%d %H:%M:%S}"
        for line in text.splitlines() or [""]:
            stamped = f"{stamp} {line}\n"
            if self._file is None and not self._failed:
                self._waiting.append(stamped)
            else:
                self._write(stamped)

    def _write(self, line: str) -> None:
        if self._file is None:
            return
        try:
            self._file.write(line.encode())
        except OSError as error:
            self._give_up(self._file.path, error)

    def _give_up(self, where: str | Path, error: OSError) -> None:
        """A log that cannot be written is no reason to lose a run."""
        self._failed, file, self._file = True, self._file, None
        print(f"note: no log from here on: {where}: {error.strerror}", file=sys.stderr)
        _close(file)

    def close(self) -> None:
        """Closes the file."""
        file, self._file = self._file, None
        _close(file)


def _close(file: GrowingFile | None) -> None:
    if file is not None:
        with contextlib.suppress(OSError):  # what could not be written was told already
            file.close()
