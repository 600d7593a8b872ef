"""A file that grows line by line, where files can be added to and where they cannot."""

import time
from pathlib import Path

from transformer_jax.paths import in_bucket, write_whole

#: An object is written whole each time, and a store takes about one write a second of it.
_SECONDS = 30.0


class GrowingFile:
    """Adds lines to a file; they are there at once.

    Not so in a bucket: there the whole object is written again by `sync`, by `close` and
    by a line that comes 30 seconds after the last time. What a kill comes before is lost.

    Args:
        path: the file; what it holds is kept.

    Raises:
        OSError: it cannot be opened; nor written, from the methods.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._is_object = in_bucket(path)
        self._is_written = True
        if self._is_object:
            self._content = bytearray(path.read_bytes() if path.exists() else b"")
            self._time = time.monotonic()
        else:
            # Unbuffered: what a full disk refuses must not be tried again at close.
            self._file = path.open("ab", buffering=0)

    def write(self, lines: bytes) -> None:
        """Adds lines."""
        if not self._is_object:
            if self._file.write(lines) != len(lines):
                raise OSError(None, "the disk took only part of a line")
            return
        self._content += lines
        self._is_written = False
        if time.monotonic() - self._time > _SECONDS:
            self.sync()

    def sync(self) -> None:
        """Returns when all lines are where the file is."""
        if not self._is_written:
            write_whole(self.path, bytes(self._content))
            self._is_written, self._time = True, time.monotonic()

    def close(self) -> None:
        """The last `sync`."""
        if self._is_object:
            self.sync()
        else:
            self._file.close()
