"""A folder for files that grow by appending, which a bucket does not allow."""

import tempfile
from pathlib import Path

from etils import epath

from transformer_jax.paths import in_bucket, write_whole


class GrowingFiles:
    """A local folder to append to: the run folder itself, or for a bucket a temporary folder.

    `sync` uploads the whole files of a temporary folder. Lines not yet uploaded are lost if the
    process is killed.

    Attributes:
        local: the folder on this machine's disk.

    Raises:
        OSError: it cannot be made.
    """

    def __init__(self, folder: epath.Path) -> None:
        self._folder = folder
        self._temporary = tempfile.TemporaryDirectory() if in_bucket(folder) else None
        self.local = Path(self._temporary.name if self._temporary else folder)
        self.local.mkdir(parents=True, exist_ok=True)

    def fetch(self, name: str) -> Path:
        """The local path of a file, downloaded first if it exists in the bucket."""
        path, remote = self.local / name, self._folder / name
        if self._temporary and remote.exists():
            path.write_bytes(remote.read_bytes())
        return path

    def sync(self) -> None:
        """Uploads the files; on a disk nothing is to be done.

        Raises:
            OSError: a file cannot be uploaded.
        """
        if self._temporary:
            for path in self.local.iterdir():
                write_whole(self._folder / path.name, path.read_bytes())

    def close(self) -> None:
        """Uploads the files and removes the temporary folder."""
        try:
            self.sync()
        finally:
            if self._temporary:
                self._temporary.cleanup()
