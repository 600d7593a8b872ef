"""PyTorch's `.bin` files, read without PyTorch and without executing what they hold.

A `.bin` file is a zip of a pickle (`data.pkl`: names, shapes, strides) and the raw numbers
(`data/0`, `data/1` ...). A pickle can call any function it names. The unpickler here finds
exactly those that a dict of tensors needs, in versions of its own that build plain records.
"""

import io
import math
import pickle
import zipfile
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import ml_dtypes
import numpy as np

from transformer_jax.errors import as_user_error
from transformer_jax.weights.weights import Stored

_DTYPES: dict[str, Any] = {
    "DoubleStorage": np.dtype("<f8"),
    "FloatStorage": np.dtype("<f4"),
    "HalfStorage": np.dtype("<f2"),
    "BFloat16Storage": np.dtype(ml_dtypes.bfloat16),
    "LongStorage": np.dtype("<i8"),
    "IntStorage": np.dtype("<i4"),
}


class _Kind(NamedTuple):
    """`torch.FloatStorage` and its like."""

    name: str


class _Storage(NamedTuple):
    dtype: np.dtype
    key: str
    size: int  #: in numbers


class _Place(NamedTuple):
    """A tensor within its storage; only `_Rebuild` makes one."""

    storage: _Storage
    offset: int
    shape: tuple[int, ...]
    strides: tuple[int, ...]  #: in numbers

    def read(self, path: Path, record: str) -> np.ndarray:
        """Its numbers, from a part of a file."""
        dtype = self.storage.dtype
        kinds = OSError, ValueError, KeyError, zipfile.BadZipFile
        with as_user_error(f"{path}: {record}:", *kinds), zipfile.ZipFile(path) as archive:
            numbers = np.frombuffer(archive.read(record), dtype)
        strides = tuple(stride * dtype.itemsize for stride in self.strides)
        return np.lib.stride_tricks.as_strided(
            numbers[self.offset :], self.shape, strides, writeable=False
        )


class _Refused(Exception):
    """The pickle holds what a dict of tensors does not need."""


class _Ignored:
    """What a checkpoint holds besides its tensors: keeps nothing and does nothing."""

    def __new__(cls, *_: Any, **__: Any) -> "_Ignored":
        return super().__new__(cls)

    def __setstate__(self, *_: Any) -> None:
        pass

    __setitem__ = append = extend = __setstate__


def read_torch(path: Path, within: str | None = None) -> dict[str, Stored]:
    """The tensors of a `.bin` file by name.

    Args:
        path: the file.
        within: the name of the dict that holds the tensors, in a checkpoint that holds more. What
            the file names besides is then not refused but ignored; it is not looked up.

    Raises:
        UserError: not a zip as PyTorch 1.6 and later write it, damaged, or more than tensors.
    """
    no_zip = f"{path}: damaged, or written by PyTorch before 1.6"
    with (
        as_user_error(f"{path}: damaged", Exception),  # a damaged pickle can raise anything
        as_user_error(no_zip, zipfile.BadZipFile, then="; give model.safetensors instead"),
        as_user_error(f"{path}:", _Refused, then="; nothing was executed"),
        zipfile.ZipFile(path) as archive,
    ):
        return _read(path, archive, within)


def _read(path: Path, archive: zipfile.ZipFile, within: str | None) -> dict[str, Stored]:
    sizes = {info.filename: info.file_size for info in archive.infolist()}
    pickles = [name for name in sizes if name.count("/") == 1 and name.endswith("/data.pkl")]
    if len(pickles) != 1:
        raise _Refused("not a PyTorch file: it has no data.pkl")
    folder = pickles[0].partition("/")[0]
    if any(info.compress_type != zipfile.ZIP_STORED for info in archive.infolist()):
        raise _Refused("has compressed parts, which PyTorch does not write")
    if f"{folder}/byteorder" in sizes and archive.read(f"{folder}/byteorder") != b"little":
        raise _Refused("written on a big-endian machine")
    tree = _Unpickler(archive.read(pickles[0]), within is not None).load()
    if within is not None and isinstance(tree, dict):
        tree = tree.get(within)
    if not isinstance(tree, dict):
        raise _Refused(f"holds one {type(tree).__name__} and not tensors by name")
    tensors = {}
    for name, value in tree.items():
        if not isinstance(name, str) or not isinstance(value, _Place):
            raise _Refused(f"{name!r} is not a tensor")
        storage = value.storage
        record = f"{folder}/data/{storage.key}"
        if sizes.get(record) != storage.size * storage.dtype.itemsize:
            raise _Refused(f"the numbers of {name} are missing or cut off")
        tensors[name] = Stored(value.shape, partial(value.read, path, record))
    return tensors


class _Unpickler(pickle.Unpickler):
    """Finds what a dict of tensors needs, and nothing else.

    What it finds is made anew for each file and has no attributes that a pickle could set, so
    that one file cannot change how the next is read.
    """

    def __init__(self, content: bytes, ignores: bool) -> None:
        super().__init__(io.BytesIO(content))
        self._ignores = ignores
        self._found: dict[tuple[str, str], Any] = {
            ("collections", "OrderedDict"): type("OrderedDict", (dict,), {}),
            ("torch._utils", "_rebuild_tensor_v2"): _Rebuild(),
            **{("torch", name): _Kind(name) for name in _DTYPES},
        }

    def find_class(self, module: str, name: str) -> Any:
        if (module, name) not in self._found:
            if self._ignores:
                return type("_Ignored", (_Ignored,), {})
            raise _Refused(f"names {module}.{name}, which no file of tensors needs")
        return self._found[module, name]

    def persistent_load(self, pid: Any) -> _Storage:
        match pid:
            case ("storage", _Kind(name), str(key), str(), int(size)) if size >= 0:
                return _Storage(_DTYPES[name], key, size)
        raise _Refused("refers to something that is not a storage")


class _Rebuild:
    """`torch._utils._rebuild_tensor_v2`."""

    __slots__ = ()

    def __call__(self, storage: Any, offset: Any, shape: Any, strides: Any, *rest: Any) -> _Place:
        del rest  # whether it wants a gradient, and hooks
        numbers = (offset, *shape, *strides)
        if not isinstance(storage, _Storage) or len(shape) != len(strides) or len(shape) > 8:
            raise _Refused("holds a tensor without a storage")
        if not all(type(number) is int and number >= 0 for number in numbers):
            raise _Refused("holds a tensor whose shape is not of whole numbers")
        count = math.prod(shape)
        last = offset + sum((n - 1) * stride for n, stride in zip(shape, strides, strict=True))
        if count > storage.size or (count and last >= storage.size):
            raise _Refused("holds a tensor that is larger than its storage")
        return _Place(storage, offset, tuple(shape), tuple(strides))
