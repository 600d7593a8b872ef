"""Whether a checkpoint is whole: a manifest of the sizes and SHA-256 sums of its files.

The manifest is written before the checkpoint is sealed (on a disk: gets its final name). So every
sealed checkpoint has one, and a file that does not match it was damaged later.
"""

import contextlib
import hashlib
import json
import time
from pathlib import PurePosixPath
from typing import Any

from etils import epath

from transformer_jax.paths import files_below

MANIFEST = "manifest.json"

#: Orbax adds the time of its commit to this file at the very end, so the manifest covers only the
#: part that says how to read the checkpoint.
_ORBAX = "_CHECKPOINT_METADATA"


def write_manifest(folder: epath.Path) -> None:
    """Records every file below `folder`, except the manifest and Orbax's metadata."""
    files = {
        path.relative_to(folder).as_posix(): _measure(path)
        for path in files_below(folder)
        if path not in (folder / _ORBAX, folder / MANIFEST)
    }
    manifest = {"handlers": _written_handlers(folder), "files": files}
    (folder / MANIFEST).write_text(json.dumps(manifest, indent=1) + "\n")


def find_damage(folder: epath.Path, *items: str) -> str | None:
    """What is wrong with a checkpoint, in a few words; None if it is whole.

    Args:
        folder: the checkpoint.
        items: read only these of its subfolders; default: all files.
    """
    try:
        handlers, files = _read_manifest(folder)
    except FileNotFoundError:
        return f"{MANIFEST} is missing"
    except Exception:  # JSON of any content and shape
        return f"{MANIFEST} is damaged"
    try:
        if _handlers(folder) != handlers:
            return f"{_ORBAX} differs from what was written"
    except Exception:
        return f"{_ORBAX} is missing or damaged"
    for name, (size, digest) in files.items():
        if items and name.split("/")[0] not in items:
            continue
        path = folder / name
        try:
            actual_size, actual_digest = _measure(path)
            if actual_size != size:
                return f"{name} has {actual_size:,} bytes instead of {size:,}"
            if actual_digest != digest:
                return f"{name} has other bytes than were written"
        except FileNotFoundError:
            return f"{name} is missing"
        except OSError as error:
            return f"{name} cannot be read ({error.strerror})"
        except ValueError:  # a null byte, half a character
            return f"{MANIFEST} is damaged"
    return None


def _written_handlers(folder: epath.Path) -> Any:
    """The handlers, once Orbax has written them, which it does in a thread of its own."""
    for _ in range(600):
        with contextlib.suppress(OSError, ValueError):  # not there yet, or half of it
            if (handlers := _handlers(folder)) is not None:
                return handlers
        time.sleep(0.1)
    raise OSError(f"Orbax did not write {folder / _ORBAX} within a minute")


def _handlers(folder: epath.Path) -> Any:
    return json.loads((folder / _ORBAX).read_text())["item_handlers"]


def _read_manifest(folder: epath.Path) -> tuple[Any, dict[str, tuple[int, str]]]:
    raw: Any = json.loads((folder / MANIFEST).read_text())
    files = {str(name): (int(size), str(digest)) for name, (size, digest) in raw["files"].items()}
    paths = map(PurePosixPath, files)
    if not files or any(path.is_absolute() or ".." in path.parts for path in paths):
        raise ValueError("a manifest may only list files of its own checkpoint")
    return raw["handlers"], files


def _measure(path: epath.Path) -> tuple[int, str]:
    """Size in bytes and SHA-256."""
    size, digest = 0, hashlib.sha256()
    with path.open("rb") as file:  # hashlib.file_digest refuses TensorFlow's file objects
        while piece := file.read(1 << 20):
            size += len(piece)
            digest.update(piece)
    return size, digest.hexdigest()
