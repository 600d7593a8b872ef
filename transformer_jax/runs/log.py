"""Messages of the package: on the console for programs, and in a run's `log.txt`.

The package logs through `logging.getLogger(__name__)` and is silent until a caller adds a
handler. Of several processes only the first one logs.
"""

import contextlib
import logging
import sys
import time
from collections.abc import Iterator
from typing import Any, Self

from etils import epath

from transformer_jax.errors import UserError, first_line
from transformer_jax.parallel.processes import is_first
from transformer_jax.paths import GrowingFiles

_PACKAGE = logging.getLogger("transformer_jax")
_LOGGER = logging.getLogger(__name__)

#: An object in a bucket is uploaded whole, and may be written about once a second.
_UPLOAD_SECONDS = 30.0


def log_to_console() -> None:
    """Shows the package's messages on standard error, above progress bars. For programs."""
    if not any(isinstance(handler, _Console) for handler in _PACKAGE.handlers):
        _PACKAGE.addHandler(_Console())
    _PACKAGE.setLevel(logging.INFO)
    _PACKAGE.propagate = False  # absl gives the root logger a handler, which would show all twice


class RunLog(logging.Handler):
    """A context that writes the package's messages to `log.txt` of a run folder.

    Messages are kept in memory until `open` names the folder, so a run that is refused writes
    nothing. An exception that ends the context is logged too. If the file cannot be written, the
    run goes on without it.
    """

    def __init__(self) -> None:
        super().__init__()
        self.setFormatter(_Format("%Y-%m-%d %H:%M:%S "))
        self._lines: list[str] = []  # that are not in the file yet
        self._files: GrowingFiles | None = None
        self._path, self._failed = epath.Path("log.txt"), False

    def open(self, workdir: epath.Path) -> None:
        """Writes the messages so far to the run folder, and later ones at once."""
        if is_first():
            self._path = workdir / "log.txt"
            with self._or_without():
                self._files = GrowingFiles(workdir)
                self._local, self._uploaded = self._files.fetch("log.txt"), time.monotonic()
                self._write()

    def emit(self, record: logging.LogRecord) -> None:
        if not self._failed:
            with self._or_without():
                self._lines.append(self.format(record) + "\n")
                self._write()

    def _write(self) -> None:
        if self._files:
            with self._local.open("a", encoding="utf-8") as file:
                file.writelines(self._lines)
            self._lines.clear()
            if time.monotonic() - self._uploaded > _UPLOAD_SECONDS:
                self._uploaded = time.monotonic()
                self._files.sync()

    @contextlib.contextmanager
    def _or_without(self) -> Iterator[None]:
        try:
            yield
        except Exception as error:  # also of a message whose arguments do not fit its text
            self._failed = True
            _LOGGER.warning("no log from here on: %s: %s", self._path, first_line(error))

    def __enter__(self) -> Self:
        self._level_before = _PACKAGE.level
        _PACKAGE.setLevel(min(_PACKAGE.level or logging.INFO, logging.INFO))
        if is_first():
            _PACKAGE.addHandler(self)
        return self

    def __exit__(self, kind: Any, error: BaseException | None, traceback: Any) -> None:
        _PACKAGE.removeHandler(self)
        _PACKAGE.setLevel(self._level_before)
        if error is not None:  # to the file alone: the caller reports it to the user
            values: dict[str, Any] = {"levelno": logging.INFO, "msg": "error"}
            if isinstance(error, UserError):
                values["msg"] = f"error: {error}"
            elif isinstance(error, BrokenPipeError):  # such as `train ... 2>&1 | head`
                values["msg"] = "stopped: nothing reads the messages any more"
            else:
                values["exc_info"] = (kind, error, traceback)
            self.handle(logging.makeLogRecord(values))
        self.close()
        if self._files:
            with contextlib.suppress(OSError):  # already reported
                self._files.close()


class _Format(logging.Formatter):
    """`note: ` before warnings, and `stamp`, filled in by `time.strftime`, before each line."""

    def __init__(self, stamp: str = "") -> None:
        super().__init__()
        self._stamp = stamp

    def format(self, record: logging.LogRecord) -> str:
        note = "note: " if record.levelno >= logging.WARNING else ""
        stamp = time.strftime(self._stamp, time.localtime(record.created))
        lines = f"{note}{super().format(record)}".split("\n")
        return "\n".join(stamp + line for line in lines)


class _Console(logging.Handler):
    """Standard error of the first process."""

    def emit(self, record: logging.LogRecord) -> None:
        from tqdm import tqdm

        try:
            if is_first():
                tqdm.write(_Format().format(record), file=sys.stderr)  # above a progress bar
        except Exception:
            self.handleError(record)
