"""Marian's binary models, `model.bin`, which Bergamot's engine and Firefox read.

Little-endian, from `src/common/binary.cpp` of browsermt/marian-dev:

    u64 version = 1 | u64 n | n times: u64 length of the name, type, rank, length of the data
    | n names, each ended by a NUL | n shapes, i32 | u64 gap | gap zeros | n times the data

The gap puts the first data at a multiple of 256 bytes from the start of the file, and every data is
filled up to one with zeros. Nothing in a file is executed, and no size in it is trusted.
"""

import math
import struct
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import NamedTuple

import numpy as np

from transformer_jax.errors import as_user_error
from transformer_jax.weights.tables import Table
from transformer_jax.weights.weights import Stored

#: Numbers of the types: float32, int8 (text), and the int8 of intgemm.
_FLOAT32, _INT8, _INTGEMM8 = 0x404, 0x101, 0x4101
_DTYPES = {_FLOAT32: "<f4", _INT8: "i1", _INTGEMM8: "i1"}
_ALIGNED = 256
#: More axes than any parameter of Marian has.
_MOST_AXES = 8


class Int8(NamedTuple):
    """A matrix of int8, which stands for `values / multiplier`."""

    values: np.ndarray  #: int8 [in, out], from -127 to 127
    multiplier: float  #: float32


#: float32, int8 for text, or `Int8`.
Item = np.ndarray | Int8


def is_table(name: str) -> bool:
    """Whether an int8 matrix is a table of embeddings: those are not transposed in a file."""
    return "Wemb" in name


def to_bytes(items: Mapping[str, Item]) -> bytes:
    """The content of a file; equal items in another order give equal bytes.

    Args:
        items: by name.
    """
    heads, names, shapes, data = [], [], [], []
    for name, item in sorted(items.items()):
        kind, shape, content = _content(name, item)
        content += b"\0" * (-len(content) % _ALIGNED)
        names.append(name.encode() + b"\0")
        heads.append(struct.pack("<4Q", len(names[-1]), kind, len(shape), len(content)))
        shapes.append(struct.pack(f"<{len(shape)}i", *shape))
        data.append(content)
    head = b"".join([struct.pack("<2Q", 1, len(items)), *heads, *names, *shapes])
    gap = -(len(head) + 8) % _ALIGNED
    return b"".join([head, struct.pack("<Q", gap), b"\0" * gap, *data])


def _content(name: str, item: Item) -> tuple[int, tuple[int, ...], bytes]:
    if isinstance(item, Int8):
        values = item.values if is_table(name) else item.values.T
        content = np.ascontiguousarray(values).tobytes() + struct.pack("<f", item.multiplier)
        return _INTGEMM8, item.values.shape, content
    kind = _FLOAT32 if item.dtype == np.float32 else _INT8
    return kind, item.shape, np.ascontiguousarray(item, _DTYPES[kind]).tobytes()


def read_items(path: Path) -> dict[str, Item]:
    """The items of a file, by name; the inverse of `to_bytes`.

    Raises:
        UserError: it cannot be read, is of another format or version, or is damaged.
    """
    with as_user_error(f"{path}: cannot be read", OSError):
        content = path.read_bytes()
    return from_bytes(content, str(path))


def from_bytes(content: bytes, origin: str) -> dict[str, Item]:
    """As `read_items`, of a file's content."""
    with as_user_error(f"{origin}: not a binary model of Marian, or damaged", ValueError):
        return _Reader(content).items()


def stored(item: Item) -> Stored:
    """An item as a tensor; a matrix of int8 as the floats that it stands for."""
    if isinstance(item, Int8):
        return Stored(item.values.shape, partial(floats, item))
    return Stored(item.shape, partial(np.asarray, item))


def floats(item: Int8) -> np.ndarray:
    """What a matrix of int8 stands for, in float32."""
    return item.values.astype(np.float32) / np.float32(item.multiplier)


#: How the names of items end that say how activations are rounded to int8.
ALPHA = "_QuantMultA"
#: How the names of items end that an import does not read: also biases of keys, without effect.
UNREAD = (ALPHA, "_bk")


def factors(items: Mapping[str, Item]) -> bytes | None:
    """What a file of int8 has and its floats lack, as a file; None of a file of floats.

    It holds what is not read as it is, and of each matrix its multiplier [1, 1] in its place.
    """
    kept = {
        name: np.array([[item.multiplier]], np.float32)
        for name, item in items.items()
        if isinstance(item, Int8) and not name.endswith(UNREAD)
    }
    unread = {name: item for name, item in items.items() if name.endswith(UNREAD)}
    return to_bytes(kept | unread) if kept else None


def with_paths(kept: bytes, table: Table) -> bytes:
    """`factors` with those of each of our parameters too, under its path: [alpha, m] (`Int8Given`).

    Args:
        kept: from `factors`.
        table: of the parameters.
    """
    items = from_bytes(kept, "the factors")
    for path, (name, *_), _ in table.tensors:
        if name in items:
            # Engines call the projection so where they use no shortlist.
            alpha = next(key for key in (f"{name}{ALPHA}", f"none{ALPHA}") if key in items)
            pair = [stored(items[key]).read().item() for key in (alpha, name)]
            items[path] = np.array(pair, np.float32)
    return to_bytes(items)


def of_paths(kept: bytes, origin: str) -> dict[str, np.ndarray]:
    """[alpha, m] of each of our parameters, by its path, from `with_paths`."""
    items = from_bytes(kept, origin)
    return {name: np.asarray(item) for name, item in items.items() if "/" in name}


class _Reader:
    """What is wrong in a file ends as a ValueError."""

    def __init__(self, content: bytes) -> None:
        self._content, self._place = content, 0

    def items(self) -> dict[str, Item]:
        if len(self._content) < 16 or self._numbers("Q", 1) != (1,):
            raise ValueError("it does not begin with the version 1")
        (count,) = self._numbers("Q", 1)
        if count * 32 > len(self._content) - self._place:
            raise ValueError(f"it names {count} items, more than it has room for")
        heads = [self._numbers("Q", 4) for _ in range(count)]
        names = [self._name(length) for length, *_ in heads]
        if (most := max((rank for _, _, rank, _ in heads), default=0)) > _MOST_AXES:
            raise ValueError(f"an item has {most} axes")
        shapes = [self._numbers("i", rank) for _, _, rank, _ in heads]
        self._bytes(*self._numbers("Q", 1))
        if len(set(names)) < len(names):
            raise ValueError("two of its items have the same name")
        return {
            name: self._item(name, kind, shape, self._bytes(length))
            for name, shape, (_, kind, _, length) in zip(names, shapes, heads, strict=True)
        }

    def _item(self, name: str, kind: int, shape: tuple[int, ...], data: bytes) -> Item:
        if kind not in _DTYPES:
            raise ValueError(
                f"{name} is of the type {kind:#x}; known are float32 ({_FLOAT32:#x}), int8 "
                f"({_INT8:#x}) and Bergamot's intgemm8 ({_INTGEMM8:#x})"
            )
        size = math.prod(shape) * np.dtype(_DTYPES[kind]).itemsize + 4 * (kind == _INTGEMM8)
        if min(shape, default=1) < 1 or size > len(data):
            raise ValueError(
                f"{name} has the shape {list(shape)} and {len(data)} bytes, which do not fit"
            )
        if kind == _INTGEMM8:
            if len(shape) != 2:
                raise ValueError(f"{name} is of intgemm8 and not a matrix: {list(shape)}")
            values = _array(data, _DTYPES[kind], shape if is_table(name) else shape[::-1])
            (multiplier,) = struct.unpack_from("<f", data, values.size)
            return Int8(values if is_table(name) else values.T, multiplier)
        return _array(data, _DTYPES[kind], shape)

    def _numbers(self, kind: str, count: int) -> tuple[int, ...]:
        return struct.unpack(f"<{count}{kind}", self._bytes(struct.calcsize(f"<{count}{kind}")))

    def _name(self, length: int) -> str:
        name = self._bytes(length)
        try:
            if name[-1:] != b"\0":
                raise ValueError
            return name[:-1].decode()
        except ValueError as error:
            raise ValueError("a name is not text that ends with NUL") from error

    def _bytes(self, count: int) -> bytes:
        found = self._content[self._place : self._place + count]
        if len(found) < count:
            raise ValueError(f"it ends after {len(self._content)} bytes, within its parts")
        self._place += count
        return found


def _array(data: bytes, dtype: str, shape: tuple[int, ...]) -> np.ndarray:
    return np.frombuffer(data, dtype, math.prod(shape)).reshape(shape)
