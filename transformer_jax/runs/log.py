"""Messages of the package: on the console for programs, and in a run's `log.txt`.

The package logs through `logging.getLogger(__name__)` and is silent until a caller adds a
handler. Of several processes only the first one logs.
"""

import contextlib
import logging
import logging.handlers
import sys
import time
from typing import Any, Self

from etils import epath

from transformer_jax.errors import UserError
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


class RunLog(logging.handlers.MemoryHandler):
    """A context that writes the package's messages to `log.txt` of a run folder.

    Messages are kept in memory until `open` names the folder, so a run that is refused writes
    nothing. An exception that ends the context is logged too.
    """

    def __init__(self) -> None:
        super().__init__(capacity=sys.maxsize, flushLevel=sys.maxsize, flushOnClose=False)

    def open(self, workdir: epath.Path) -> None:
        """Writes the messages so far to the run folder, and later ones at once."""
        if self.target is None and is_first():
            try:
                files = GrowingFiles(workdir)
                log = _LogFile(files.fetch("log.txt"), encoding="utf-8")
            except OSError as error:
                _LOGGER.warning("no log from here on: %s: %s", workdir, error.strerror)
                return
            log.files, log.workdir, log.uploaded = files, workdir, time.monotonic()
            log.setFormatter(_Format("%Y-%m-%d %H:%M:%S "))
            self.setTarget(log)
            self.capacity = 0  # write each message at once
            self.flush()

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
        target = self.target
        self.close()
        if target is not None:
            target.close()


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


class _LogFile(logging.FileHandler):
    """`log.txt`. If it cannot be written the run goes on without it."""

    files: GrowingFiles
    workdir: epath.Path
    uploaded: float  #: by `time.monotonic`
    _failed = False

    def emit(self, record: logging.LogRecord) -> None:
        if self._failed:
            return
        super().emit(record)
        if time.monotonic() - self.uploaded > _UPLOAD_SECONDS:
            self.uploaded = time.monotonic()
            try:
                self.files.sync()
            except OSError:
                self.handleError(record)

    def handleError(self, record: logging.LogRecord) -> None:
        error = sys.exc_info()[1]
        self._failed = True
        reason = error.strerror if isinstance(error, OSError) else error
        _LOGGER.warning("no log from here on: %s: %s", self.workdir / "log.txt", reason)

    def close(self) -> None:
        with contextlib.suppress(OSError):  # already reported
            super().close()
        with contextlib.suppress(OSError):
            self.files.close()
