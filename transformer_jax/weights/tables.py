"""The table of a family: each parameter, its names in the family's files, and how the two convert.

One table serves both directions: `to_params` reads a file and `to_tensors` writes one.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from transformer_jax.errors import UserError
from transformer_jax.models.api import Params, abstract_params
from transformer_jax.models.config import ModelConfig
from transformer_jax.models.paths import by_path, from_paths
from transformer_jax.weights.weights import Weights

Shape = tuple[int, ...]


class Change(NamedTuple):
    """A conversion and its inverse."""

    ours: Callable[[np.ndarray], np.ndarray]
    theirs: Callable[[np.ndarray], np.ndarray]


SAME = Change(np.asarray, np.asarray)

#: PyTorch stores the matrix of a projection as [out, in].
TRANSPOSED = Change(np.transpose, np.transpose)


def rows(order: np.ndarray) -> Change:
    """Permuted rows: row i of ours is their row `order[i]`, or zeros where that is -1.

    Args:
        order: int [V]; holds each of their rows once.
    """
    theirs_of = np.argsort(order)[(order < 0).sum() :]  # which of our rows each of theirs is

    def ours(x: np.ndarray) -> np.ndarray:
        taken = x[order]
        taken[order < 0] = 0
        return taken

    return Change(ours, lambda x: x[theirs_of])


#: A vector that is stored as a matrix of one row.
AS_ROW = Change(lambda x: x[0], lambda x: x[None])


def scaled(factor: float) -> Change:
    """Ours is theirs times a factor."""
    return Change(lambda x: x * np.float32(factor), lambda x: x / np.float32(factor))


def after_first_rows(count: int) -> Change:
    """Ours is theirs without the first rows of a matrix, which are never read."""
    return Change(lambda x: x[count:], lambda x: np.pad(x, ((count, 0), (0, 0))))


def chain(first: Change, then: Change) -> Change:
    """`then` after `first`, on the way to ours."""
    return Change(lambda x: then.ours(first.ours(x)), lambda x: first.theirs(then.theirs(x)))


class Tensor(NamedTuple):
    """A parameter and the tensor it is in a file."""

    path: str  #: in the tree of parameters, with slashes
    names: tuple[str, ...]  #: those in the file that are there hold the same; the first is written
    change: Change = SAME


@dataclass(frozen=True)
class Table:
    """All tensors of a model in its family's layout."""

    tensors: Sequence[Tensor]
    #: tensors that change no output, and their shapes; written as zeros
    zeros: Mapping[str, Shape]
    #: tensors that a file may hold and that follow from the config; not written
    ignored: Sequence[str] = ()

    def to_params(self, config: ModelConfig, weights: Weights) -> Params:
        """The parameters of a model, in float32.

        Raises:
            UserError: a tensor is missing, has another shape, differs from one that it should
                equal, or is not in the table.
        """
        shapes = {path: leaf.shape for path, leaf in by_path(abstract_params(config)).items()}
        self._check_complete(shapes)
        params = {}
        for path, names, change in self.tensors:
            there = [name for name in names if name in weights] or names[:1]
            shape = change.theirs(np.broadcast_to(np.int8(0), shapes[path])).shape
            values = [weights.take(name, shape) for name in there]
            for name, other in zip(there[1:], values[1:], strict=True):
                if not np.array_equal(values[0], other):
                    raise UserError(f"{weights.origin}: {there[0]} and {name} differ")
            params[path] = np.ascontiguousarray(change.ours(values[0]).astype(np.float32))
        for name, shape in self.zeros.items():
            if name in weights:
                weights.take(name, shape)
        weights.check_all_taken(self.ignored)
        return from_paths(params)

    def to_tensors(self, params: Params) -> dict[str, np.ndarray]:
        """The tensors of a file, in float32."""
        flat = by_path(params)
        self._check_complete(flat)
        tensors = {name: np.zeros(shape, np.float32) for name, shape in self.zeros.items()}
        for path, names, change in self.tensors:
            values = np.asarray(flat[path], np.float32)
            tensors[names[0]] = np.ascontiguousarray(change.theirs(values))
        return tensors

    def _check_complete(self, paths: Mapping[str, Any]) -> None:
        listed = [tensor.path for tensor in self.tensors]
        assert sorted(listed) == sorted(paths), set(listed) ^ set(paths)
