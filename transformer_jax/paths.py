"""Paths of files and folders, on a disk or in a bucket (`gs://bucket/run`): etils' `epath.Path`.

A bucket differs from a disk in three ways: an object is written whole or not at all, nothing can
be renamed, and nothing can be appended to. `write_whole` and `move_folder` hide the first two;
`GrowingFiles` hides the third.
"""

import contextlib
import errno
import functools
import importlib.util
import os
import secrets
import shutil
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import platformdirs
from etils import epath

from transformer_jax.errors import UserError, first_line


def user_cache() -> Path:
    """The folder of what can be made again: ids, compiled programs; on Linux in `~/.cache`."""
    return platformdirs.user_cache_path("transformer_jax", appauthor=False)


def as_path(where: str | os.PathLike[str]) -> epath.Path:
    """The path of a file or folder, as given by the user.

    For a bucket it is returned only after the bucket has responded.

    Raises:
        UserError: a URL other than `gs://`, a package that it needs is missing, or no access.
    """
    text = os.fspath(where)
    if text.startswith("gs:/") and not text.startswith("gs://"):  # a folder named `gs:`
        raise UserError(f"{text}: pathlib removes a slash from URLs; pass this one as a str")
    if "://" in text:
        _check_bucket(text)
    return epath.Path(text)


def in_bucket(path: epath.Path) -> bool:
    """Whether the path names objects in a bucket, not files on a disk."""
    return "://" in os.fspath(path)


def absolute(path: epath.Path) -> epath.Path:
    """The path from the root; symbolic links stay."""
    return path if in_bucket(path) else path.absolute()


def absolute_name(path: str) -> str:
    """The absolute name of a file or folder; a URL stays as it is."""
    return path if "://" in path else os.path.abspath(os.path.expanduser(path))


def temporary_name(path: epath.Path) -> epath.Path:
    """A hidden name beside a path, which no other process uses.

    Process numbers are not enough: those of two containers that share a disk may be equal.
    """
    return path.with_name(f".{path.name}.{secrets.token_hex(8)}")


def write_whole(path: epath.Path, content: bytes) -> None:
    """Writes a whole file; if that fails, the old content stays.

    Raises:
        OSError: it cannot be written; `strerror` gives the reason.
    """
    if in_bucket(path):
        with _as_os_error(path):
            path.write_bytes(content)
        return
    temporary = temporary_name(path)
    try:
        temporary.write_bytes(content)
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)


@contextlib.contextmanager
def new_folder(folder: Path, is_whole: Callable[[], bool] = lambda: True) -> Iterator[Path]:
    """A temporary folder beside a folder on a disk, which gets its name where the block ends well.

    Args:
        folder: one that another process has made meanwhile stays.
        is_whole: asked of such a folder; else it is replaced.

    Raises:
        OSError: a full disk, with the folder's name.
    """
    folder.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(
        prefix=f".{folder.name}.", dir=folder.parent, ignore_cleanup_errors=True
    ) as temporary:
        inner = Path(temporary) / folder.name
        inner.mkdir()
        try:
            yield inner
        except OSError as error:
            if error.errno in (errno.ENOSPC, errno.EDQUOT):
                error.filename = error.filename or str(folder)
            raise
        try:
            os.rename(inner, folder)
        except OSError as error:
            if error.errno not in (errno.EEXIST, errno.ENOTEMPTY):
                raise
            if not is_whole():
                shutil.rmtree(folder, ignore_errors=True)
                os.rename(inner, folder)


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


def files_below(folder: epath.Path) -> Iterator[epath.Path]:
    """Every file in a folder and its subfolders, sorted by name."""
    for path in sorted(folder.iterdir()):
        if path.is_dir():
            yield from files_below(path)
        else:
            yield path


def remove_folder(folder: epath.Path) -> None:
    """Removes a folder and its content, as far as that is possible."""
    with contextlib.suppress(Exception):  # each storage library has its own errors
        folder.rmtree(missing_ok=True)


def move_folder(folder: epath.Path, target: epath.Path) -> None:
    """Renames a folder and replaces what has that name; in a bucket by copying.

    Raises:
        OSError: it cannot be moved.
    """
    remove_folder(target)
    target.parent.mkdir(parents=True, exist_ok=True)
    if not in_bucket(folder):
        folder.rename(target)
        return
    with _as_os_error(folder):
        for path in files_below(folder):
            path.copy(target / path.relative_to(folder).as_posix(), overwrite=True)
    remove_folder(folder)


@functools.cache
def _check_bucket(url: str) -> None:
    if not url.startswith("gs://"):
        raise UserError(f"{url}: the only URLs supported are gs://bucket/folder; or give a path")
    # Orbax looks the bucket up with the first; etils reads objects with either of the others.
    if not _has("google.cloud.storage") or not (_has("tensorflow") or _has("gcsfs")):
        raise UserError(
            f"{url}: a bucket needs packages that are not installed here: "
            "./run setup gcs, or pip install 'transformer-jax[gcs]'"
        )
    import fsspec

    # TensorStore writes to the bucket too, so a cached listing can be out of date.
    fsspec.config.conf.setdefault("gcs", {}).setdefault("use_listings_cache", False)
    try:
        epath.Path(url).exists()
    except Exception as error:  # each storage library has its own errors
        raise UserError(f"{url}: no access ({first_line(error)})") from error


def _has(package: str) -> bool:
    with contextlib.suppress(ModuleNotFoundError):  # of its parent package
        return importlib.util.find_spec(package) is not None
    return False


@contextlib.contextmanager
def _as_os_error(path: epath.Path) -> Iterator[None]:
    try:
        yield
    except Exception as error:  # each storage library has its own errors
        raise OSError(None, first_line(error), os.fspath(path)) from error
