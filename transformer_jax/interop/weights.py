"""Tensors of published models, by the names in their files. Nothing in a file is executed.

Read are safetensors, PyTorch's `.bin` (`torch_files.py`), both also in several files with an
index, and Flax's msgpack. Flax's names and axes become PyTorch's, so that one table of names
serves a family in all of them.
"""

import json
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from transformer_jax.errors import UserError, first_line
from transformer_jax.interop.torch_files import read_torch


class Stored(NamedTuple):
    """A tensor in a file, read when it is asked for."""

    shape: tuple[int, ...]
    read: Callable[[], np.ndarray]


class Weights:
    """The tensors of one model. Each is to be taken; `check_all_taken` refuses what is left.

    Args:
        origin: the file or folder, for messages.
        tensors: by name.
    """

    def __init__(self, origin: str, tensors: Mapping[str, Stored]) -> None:
        self.origin = origin
        self._tensors = dict(tensors)
        self._taken: set[str] = set()

    def __contains__(self, name: str) -> bool:
        return name in self._tensors

    def shape(self, name: str) -> tuple[int, ...]:
        """Of a tensor that must be there."""
        return self._stored(name).shape

    def take(self, name: str, shape: tuple[int, ...] | None = None) -> np.ndarray:
        """The tensor in float32, or float64 if that is how it is stored.

        Raises:
            UserError: there is none with this name, or its shape is another one.
        """
        stored = self._stored(name)
        if shape is not None and stored.shape != shape:
            raise UserError(
                f"{self.origin}: the tensor {name} has the shape {list(stored.shape)}, but "
                f"{list(shape)} follows from config.json"
            )
        self._taken.add(name)
        values = stored.read()
        return values if values.dtype == np.float64 else values.astype(np.float32)

    def check_all_taken(self, ignored: Iterable[str] = ()) -> None:
        """Raises UserError naming the tensors that were not taken, except those `ignored`."""
        left = sorted(self._tensors.keys() - self._taken - set(ignored))
        if left:
            more = f" and {len(left) - 5} more" if len(left) > 5 else ""
            raise UserError(
                f"{self.origin}: nothing in this architecture reads the tensors "
                f"{', '.join(left[:5])}{more}"
            )

    def _stored(self, name: str) -> Stored:
        if name not in self._tensors:
            raise UserError(f"{self.origin}: the tensor {name} is missing")
        return self._tensors[name]


def read_weights(folder: Path) -> Weights:
    """The weights of a model folder, in whichever of the known files they are.

    Raises:
        UserError: there are none, or a file is damaged or holds something else than tensors.
    """
    for name, read in _READERS.items():
        if (folder / name).is_file():
            return Weights(str(folder / name), read(folder / name))
        index = folder / f"{name}.index.json"
        if index.is_file():
            return Weights(str(index), _read_parts(index, read))
    raise UserError(f"{folder}: no weights here; expected one of {', '.join(_READERS)}")


def read_json(path: Path) -> dict[str, Any]:
    """The JSON object in a file.

    Raises:
        UserError: it is missing or not a JSON object.
    """
    try:
        values = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise UserError(f"{path}: cannot be read ({error.strerror})") from error
    except (ValueError, RecursionError) as error:
        raise UserError(f"{path}: not valid JSON ({first_line(error)})") from error
    if not isinstance(values, dict):
        raise UserError(f"{path}: not a JSON object")
    return values


def _read_parts(index: Path, read: Callable[[Path], Mapping[str, Stored]]) -> dict[str, Stored]:
    """The tensors of several files that an index lists by name."""
    names = read_json(index).get("weight_map")
    if not isinstance(names, dict) or not all(isinstance(file, str) for file in names.values()):
        raise UserError(f"{index}: has no weight_map of tensors and their files")
    parts: dict[str, Mapping[str, Stored]] = {}
    for file in sorted(set(names.values())):
        if Path(file).name != file or not (index.parent / file).is_file():
            raise UserError(f"{index}: names {file}, which is not a file in this folder")
        parts[file] = read(index.parent / file)
    tensors: dict[str, Stored] = {}
    for file, part in parts.items():
        for name, stored in part.items():
            if names.get(name) != file:
                raise UserError(f"{index}: does not list {name} of {file}")
            tensors[name] = stored
    if missing := sorted(names.keys() - tensors.keys()):
        raise UserError(f"{index}: {names[missing[0]]} does not hold {missing[0]}")
    return tensors


def _read_safetensors(path: Path) -> dict[str, Stored]:
    import ml_dtypes  # noqa: F401  (gives numpy the name of bfloat16)
    from safetensors import SafetensorError, safe_open

    def read(name: str) -> np.ndarray:
        try:
            with safe_open(path, "np") as file:
                return file.get_tensor(name)
        except (SafetensorError, OSError, KeyError, TypeError, AttributeError) as error:
            raise UserError(f"{path}: cannot read {name} ({first_line(error)})") from error

    try:
        with safe_open(path, "np") as file:
            return {
                name: Stored(tuple(file.get_slice(name).get_shape()), partial(read, name))
                for name in file.keys()  # noqa: SIM118  (not a mapping)
            }
    except (SafetensorError, OSError) as error:
        raise UserError(f"{path}: not a safetensors file ({first_line(error)})") from error


def _read_torch(path: Path) -> dict[str, Stored]:
    return {name: Stored(tensor.shape, tensor.read) for name, tensor in read_torch(path).items()}


def _read_flax(path: Path) -> dict[str, Stored]:
    from flax.serialization import msgpack_restore

    try:
        tree = msgpack_restore(path.read_bytes())
    except Exception as error:  # msgpack and numpy each have their own errors
        raise UserError(f"{path}: not Flax's msgpack ({first_line(error)})") from error
    tensors: dict[str, Stored] = {}

    def add(names: list[str], node: Any) -> None:
        if isinstance(node, dict):
            for name, child in node.items():
                add([*names, str(name)], child)
        elif isinstance(node, np.ndarray):
            values = node.T if names[-1] == "kernel" else node
            last = "weight" if names[-1] in ("kernel", "scale", "embedding") else names[-1]
            tensors[".".join([*names[:-1], last])] = Stored(values.shape, lambda: values)
        else:
            raise UserError(f"{path}: {'/'.join(names)} is not a tensor")

    add([], tree)
    return tensors


#: File name -> its reader. A folder often holds the same weights in several; the first is read.
_READERS: dict[str, Callable[[Path], Mapping[str, Stored]]] = {
    "model.safetensors": _read_safetensors,
    "pytorch_model.bin": _read_torch,
    "flax_model.msgpack": _read_flax,
}
