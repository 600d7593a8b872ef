"""What a whole checkpoint consists of: a manifest of the sizes and SHA-256 sums of its files.

The manifest is written into the checkpoint before it is sealed (gets its final name, on a
disk), so one that is sealed has it, and what does not agree with it was damaged later.
"""

import hashlib
import json
from pathlib import Path
from typing import Any

from transformer_jax.paths import files_below

MANIFEST = "manifest.json"

#: Orbax writes the time of its commit into this file after everything else, so that only
#: the part which says how to read the checkpoint is covered.
_ORBAX = "_CHECKPOINT_METADATA"

#: What reading JSON of any content, in any shape, can raise.
_UNREADABLE = (
    OSError,
    ValueError,
    KeyError,
    TypeError,
    AttributeError,
    OverflowError,
    RecursionError,
)


def write_manifest(folder: Path) -> None:
    """Records every file below `folder`, but the few that are not covered."""
    files = {
        path.relative_to(folder).as_posix(): _measure(path)
        for path in files_below(folder)
        if path not in (folder / _ORBAX, folder / MANIFEST)
    }
    manifest = {"format": 1, "handlers": _handlers(folder), "files": files}
    (folder / MANIFEST).write_text(json.dumps(manifest, indent=1) + "\n", encoding="utf-8")


def has_manifest(folder: Path) -> bool:
    """Whether there is something to check the checkpoint against."""
    return (folder / MANIFEST).is_file()


def find_damage(folder: Path, *parts: str) -> str | None:
    """What is wrong with a checkpoint, in a few words; None where it is whole.

    Args:
        folder: the checkpoint.
        parts: only files in these of its folders are read; none given: all files.
    """
    try:
        handlers, files = _read_manifest(folder)
    except FileNotFoundError:
        return f"{MANIFEST} is missing"
    except _UNREADABLE:
        return f"{MANIFEST} is damaged"
    try:
        if _handlers(folder) != handlers:
            return f"{_ORBAX} says something else than was written"
    except _UNREADABLE:
        return f"{_ORBAX} is missing or damaged"
    for name, (size, digest) in files.items():
        if parts and name.split("/")[0] not in parts:
            continue
        path = folder / name
        try:
            found_size, found_digest = _measure(path)
            if found_size != size:
                return f"{name} has {found_size:,} bytes instead of {size:,}"
            if found_digest != digest:
                return f"{name} has other bytes than were written"
        except FileNotFoundError:
            return f"{name} is missing"
        except OSError as error:
            return f"{name} cannot be read ({error.strerror})"
        except ValueError:  # a null byte, half a character
            return f"{MANIFEST} is damaged"
    return None


def _handlers(folder: Path) -> Any:
    return json.loads((folder / _ORBAX).read_text(encoding="utf-8"))["item_handlers"]


def _read_manifest(folder: Path) -> tuple[Any, dict[str, tuple[int, str]]]:
    raw: Any = json.loads((folder / MANIFEST).read_text(encoding="utf-8"))
    files = {str(name): (int(size), str(digest)) for name, (size, digest) in raw["files"].items()}
    paths = map(Path, files)
    if not files or any(path.is_absolute() or ".." in path.parts for path in paths):
        raise ValueError("a manifest lists files of its own folder")
    return raw["handlers"], files


def _measure(path: Path) -> tuple[int, str]:
    """Size and SHA-256, in one reading."""
    size, digest = 0, hashlib.sha256()
    with path.open("rb") as file:  # `file_digest` does not take TensorFlow's files
        while piece := file.read(1 << 20):
            size += len(piece)
            digest.update(piece)
    return size, digest.hexdigest()
