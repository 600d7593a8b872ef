"""Paths of files and folders, on a disk or in a bucket (`gs://bucket/run`): etils' `epath.Path`.

A bucket differs from a disk in three ways: an object is written whole or not at all, nothing can
be renamed, and nothing can be appended to. `write_whole` and `move_folder` hide the first two;
`GrowingFiles` hides the third. `stage` fills a folder once, of what its inputs say.
"""

import contextlib
import errno
import functools
import importlib.util
import json
import os
import secrets
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import platformdirs
from etils import epath
from filelock import FileLock

from transformer_jax.errors import UserError, as_user_error, first_line, optional

#: The file of a folder that says what it is made of.
RECORD = "made_of.json"
_LEFT_AFTER = 24 * 60 * 60  # seconds without a write, after which no process fills a folder
_NO_WRITE = (errno.ENOSPC, errno.EDQUOT, errno.EACCES, errno.EROFS, errno.EPERM)


def user_cache() -> Path:
    """The folder of what can be made again: ids, compiled programs; on Linux in `~/.cache`."""
    return platformdirs.user_cache_path("transformer_jax", appauthor=False)


def as_path(where: str | os.PathLike[str]) -> epath.Path:
    """The path of a file or folder, as given by the user.

    For a bucket it is returned only after the bucket has responded.

    Raises:
        UserError: an empty name, a URL other than `gs://`, a package that it needs is missing, or
            no access.
    """
    text = os.fspath(where)
    if not text:  # as of a variable that a shell does not know
        raise UserError("a file or folder has an empty name: give its name, or . for this folder")
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


def read_record(path: epath.Path, inputs: Mapping[str, Any], flag: str) -> dict[str, Any] | None:
    """What a file of JSON holds besides the inputs that its folder is made of; None: not there.

    Args:
        path: of the file.
        inputs: as JSON by name.
        flag: names the folder.

    Raises:
        UserError: the folder is made of other inputs, or the file is damaged.
    """
    if not path.exists():
        return None
    try:
        held = dict(json.loads(path.read_text()))
    except (OSError, ValueError, TypeError, RecursionError):
        raise UserError(f"{path}: damaged: remove it, or name another {flag}") from None
    inputs = json.loads(json.dumps(inputs))  # lists for tuples
    differing = [name for name, value in inputs.items() if held.pop(name, None) != value]
    if differing:
        raise UserError(
            f"{path.parent}: made with another {', another '.join(differing)}: give the same to "
            f"continue, name another {flag}, or remove this folder to make it again"
        )
    return held


def write_record(path: epath.Path, inputs: Mapping[str, Any], **held: Any) -> None:
    """Writes a file for `read_record`."""
    write_whole(path, (json.dumps({**inputs, **held}, indent=1) + "\n").encode())


def claim(path: epath.Path, inputs: Mapping[str, Any], flag: str) -> None:
    """Writes the inputs of a folder into its file, or checks those that are there.

    Raises:
        UserError: as `read_record`.
    """
    if read_record(path, inputs, flag) is None:
        path.parent.mkdir(parents=True, exist_ok=True)
        write_record(path, inputs)


@contextlib.contextmanager
def one_at_a_time(path: epath.Path) -> Iterator[bool]:
    """Waits until no other process is in this context with the same file.

    For reading a file and writing it back. In a bucket, or on a file system without locks, it
    does not wait, and the value is False.
    """
    with contextlib.ExitStack() as stack:
        is_held = False
        if not in_bucket(path):
            lock = FileLock(path.with_name(f".{path.name}.lock"), fallback_to_soft=False)
            with contextlib.suppress(OSError):
                stack.enter_context(lock)
                is_held = True
        yield is_held


@contextlib.contextmanager
def writing(folder: epath.Path, flag: str) -> Iterator[None]:
    """Says in one line why a folder cannot be written, and what the user can do.

    Raises:
        UserError: the disk is full, or may not be written.
    """
    try:
        yield
    except OSError as error:
        if error.errno not in _NO_WRITE:
            raise
        raise UserError(
            f"{folder}: cannot be written ({error.strerror}): free some space, or name another "
            f"{flag}"
        ) from None


def damaged(folder: str | os.PathLike[str]) -> UserError:
    """What is raised of a folder that `stage` filled and that is not what it was then."""
    return UserError(f"{os.fspath(folder)}: damaged: remove it to make it again")


def made(
    folder: epath.Path,
    inputs: Mapping[str, Any],
    *,
    flag: str,
    is_whole: Callable[[dict[str, Any]], bool] | None = None,
) -> dict[str, Any] | None:
    """What is known of a folder that `stage` filled; None: it is not there. See `stage`."""
    # In a bucket the files move one by one.
    if not folder.exists() or (in_bucket(folder) and _partial(folder).exists()):
        return None
    with contextlib.suppress(UserError) if is_whole else contextlib.nullcontext():
        held = read_record(folder / RECORD, inputs, flag) or {}
        known = dict(held.get("known", {}))  # an older version kept neither
        if held.get("files", sizes := _sizes(folder)) == sizes and (
            not is_whole or is_whole(known)
        ):
            return known
        raise damaged(folder)
    return None


def stage(
    folder: epath.Path,
    inputs: Mapping[str, Any],
    fill: Callable[[epath.Path], Mapping[str, Any] | None],
    *,
    flag: str,
    is_whole: Callable[[dict[str, Any]], bool] | None = None,
    first: Callable[[Callable[[], Any]], Any] = lambda make: make(),
) -> dict[str, Any]:
    """Fills a folder, unless that was done before; the value is what is known of its content.

    Until the folder is whole, it has the name `<folder>.partial`, and a start that was killed is
    continued there. `made_of.json` in it has the inputs, and at last the sizes of the files, by
    which a folder is known to be whole. Another process that makes the same is waited for.

    Args:
        folder: which may be in a bucket.
        inputs: what its content depends on, as JSON by name.
        fill: called with the folder to write to, which may hold what an earlier call wrote; its
            value is what is known, as JSON by name.
        flag: names the folder, for messages.
        is_whole: of a cache: whether what is known of a folder is right; else it is made again,
            and so is one that is damaged. What killed processes left beside it is removed a day
            later.
        first: where several processes make the same call to fill the folder together: calls a
            function in the first one, and returns its value in all.

    Raises:
        UserError: it cannot be written, or it is damaged, or made or begun of other inputs.
    """
    find = functools.partial(made, folder, inputs, flag=flag, is_whole=is_whole)

    def begin() -> tuple[dict[str, Any] | None, str]:
        partial = _partial(folder)
        if (known := find()) is not None:
            return known, ""
        partial.mkdir(parents=True, exist_ok=True)
        if not lock.enter_context(one_at_a_time(partial / RECORD)) and not in_bucket(folder):
            partial = folder.with_name(f"{folder.name}.{secrets.token_hex(8)}.partial")
        if (known := find()) is not None:  # another process was faster
            remove_folder(partial)
            return known, ""
        if is_whole and not in_bucket(folder):
            _remove_left(folder.parent, partial)
        claim(partial / RECORD, inputs, flag)
        _remove_temporary(partial)
        return None, os.fspath(partial)

    def finish() -> None:
        write_record(partial / RECORD, inputs, known=known, files=_sizes(partial))
        move_folder(partial, folder)
        if not in_bucket(folder):
            (folder / f".{RECORD}.lock").unlink(missing_ok=True)

    with writing(folder, flag), contextlib.ExitStack() as lock:
        known, place = first(begin)
        if known is None:
            partial = epath.Path(place)
            known = dict(fill(partial) or {})
            first(finish)
    return known


def _partial(folder: epath.Path) -> epath.Path:
    return folder.with_name(f"{folder.name}.partial")


def _remove_temporary(folder: epath.Path) -> None:
    """Removes what a killed process left under hidden names."""
    for path in folder.iterdir():
        if path.name.startswith(".") and path.suffix != ".lock":
            path.rmtree() if path.is_dir() else path.unlink()
        elif path.is_dir():
            _remove_temporary(path)


def _sizes(folder: epath.Path) -> dict[str, int]:
    """The size of each file in a folder, but for the record and hidden ones."""
    return {
        path.relative_to(folder).as_posix(): path.stat().length
        for path in files_below(folder)
        if path.name != RECORD and not path.name.startswith(".")
    }


def _remove_left(cache: epath.Path, partial: epath.Path) -> None:
    """Removes the folders that killed processes began in a cache, but for one."""
    for folder in cache.glob("*.partial"):
        with contextlib.suppress(OSError):  # another process removes it too
            written = max(path.stat().mtime for path in (folder, *files_below(folder)))
            if folder != partial and written < time.time() - _LEFT_AFTER:
                remove_folder(folder)


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
    # etils reads objects with TensorFlow or gcsfs; Orbax looks the bucket up with the last one.
    if importlib.util.find_spec("tensorflow") is None:
        optional("gcsfs", f"{url}: a bucket", "gcs")
    optional("google.cloud.storage", f"{url}: a bucket", "gcs")
    import fsspec

    # TensorStore writes to the bucket too, so a cached listing can be out of date.
    fsspec.config.conf.setdefault("gcs", {}).setdefault("use_listings_cache", False)
    with as_user_error(f"{url}: no access", Exception):  # each storage library has its own errors
        epath.Path(url).exists()


@contextlib.contextmanager
def _as_os_error(path: epath.Path) -> Iterator[None]:
    try:
        yield
    except Exception as error:  # each storage library has its own errors
        raise OSError(None, first_line(error), os.fspath(path)) from error
