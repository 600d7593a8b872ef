"""Where a run is kept: a folder on a disk, or a folder of a bucket (`gs://bucket/run`).

Both are paths with pathlib's methods, so that the rest of the program need not know which it
has. What a store of objects does not have is done here another way: renaming (an object is
whole or not there at all), adding to a file (see `training/growing_file.py`), locks.
"""

import contextlib
import functools
import importlib.util
import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any, cast

from transformer_jax.errors import UserError


def as_path(where: str | Path) -> Path:
    """A `pathlib.Path` for a path, an `epath.Path` for a URL.

    The latter has pathlib's methods but for `stat().st_size`, `rglob` and `absolute`, and
    opens files in `with` alone. It is made once it was seen that the bucket answers.

    Raises:
        UserError: not a bucket that can be used, or a package is missing, or no access.
    """
    text = str(where)
    if "://" not in text:
        if text.startswith("gs:/"):  # it would be made as a folder called `gs:`
            raise UserError(f"{text}: pathlib takes a slash out of URLs; give this one as a str")
        return Path(where)
    return _bucket_path(text) if isinstance(where, str) else where


def in_bucket(path: Path) -> bool:
    """Whether the path is one of objects, not of files."""
    return not isinstance(path, Path)


def absolute(path: Path) -> Path:
    """The path from the root; a URL is one."""
    return path if in_bucket(path) else path.absolute()


def make_folder(folder: Path) -> None:
    """Makes a folder and those it is in, on a disk; those of a bucket are but names."""
    if not in_bucket(folder):
        folder.mkdir(parents=True, exist_ok=True)


def write_whole(path: Path, content: bytes) -> None:
    """Writes all of a file or, where that fails, leaves the old one.

    Raises:
        OSError: it could not be written, with the reason in `strerror`.
    """
    if in_bucket(path):
        with _failing_as_on_disk(path):
            path.write_bytes(content)
        return
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        temporary.write_bytes(content)
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)


def files_below(folder: Path) -> Iterator[Path]:
    """Every file in a folder and its folders, in the order of their names."""
    for path in sorted(folder.iterdir()):
        if path.is_dir():
            yield from files_below(path)
        else:
            yield path


def remove_folder(folder: Path) -> None:
    """Removes a folder with all in it, as far as that can be done."""
    if in_bucket(folder):
        with contextlib.suppress(Exception):  # each library has its own
            cast(Any, folder).rmtree(missing_ok=True)
    else:
        shutil.rmtree(folder, ignore_errors=True)


def move_folder(folder: Path, target: Path) -> None:
    """Gives a folder another name, in place of what has that name; in a bucket, by copying it."""
    remove_folder(target)
    make_folder(target.parent)
    if not in_bucket(folder):
        folder.rename(target)
        return
    with _failing_as_on_disk(folder):
        for path in files_below(folder):
            copy = target / path.relative_to(folder).as_posix()
            cast(Any, path).copy(copy, overwrite=True)
    remove_folder(folder)


@functools.cache
def _bucket_path(url: str) -> Path:
    if not url.startswith("gs://"):
        raise UserError(f"{url}: of URLs only gs://bucket/folder can be used; or give a path")
    if missing := _missing_packages():
        raise UserError(
            f"{url}: a bucket needs {' and '.join(missing)}, not installed here: "
            "pip install google-cloud-storage gcsfs"
        )
    import fsspec
    from etils import epath

    # TensorStore writes there too: what was listed a moment ago may have changed.
    fsspec.config.conf.setdefault("gcs", {}).setdefault("use_listings_cache", False)
    path = cast(Path, epath.Path(url))
    try:
        path.exists()
    except Exception as error:  # each library has its own
        raise UserError(f"{url}: no access ({_first_line(error)})") from error
    return path


def _missing_packages() -> list[str]:
    def has(name: str) -> bool:
        try:
            return importlib.util.find_spec(name) is not None
        except ModuleNotFoundError:  # not even the package it is in
            return False

    missing = []
    if not has("google.cloud.storage"):  # Orbax asks it about the bucket
        missing.append("google-cloud-storage")
    if not has("tensorflow") and not has("gcsfs"):  # either of which etils reads it with
        missing.append("tensorflow or gcsfs")
    return missing


@contextlib.contextmanager
def _failing_as_on_disk(path: Path) -> Iterator[None]:
    try:
        yield
    except Exception as error:  # each library has its own
        raise OSError(None, _first_line(error), str(path)) from error


def _first_line(error: Exception) -> str:
    return (str(error).strip().splitlines() or [type(error).__name__])[0][:300]
