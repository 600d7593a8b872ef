"""Tensors of published models, by the names in their files."""

from collections.abc import Callable, Iterable, Mapping
from typing import NamedTuple

import numpy as np

from transformer_jax.errors import UserError


class Stored(NamedTuple):
    """A tensor in a file, read when it is asked for."""

    shape: tuple[int, ...]
    read: Callable[[], np.ndarray]


def check_finite(origin: str, name: str, values: np.ndarray) -> None:
    """Raises UserError where a tensor of a file holds NaN or infinity."""
    if not (finite := np.isfinite(values)).all():
        raise UserError(
            f"{origin}: {finite.size - finite.sum()} of {finite.size} numbers of the tensor {name} "
            "are NaN or infinite, so the model is damaged"
        )


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

    def shape_of(self, name: str) -> tuple[int, ...]:
        """The shape of a tensor, which is not taken by that.

        Raises:
            UserError: there is none with this name.
        """
        if name not in self:
            raise UserError(f"{self.origin}: the tensor {name} is missing")
        return self._tensors[name].shape

    def take(self, name: str, shape: tuple[int, ...] | None = None) -> np.ndarray:
        """The tensor in float32, or float64 if that is how it is stored.

        Raises:
            UserError: there is none with this name, its shape is another one, or a number in it is
                not finite.
        """
        found = self.shape_of(name)
        if shape is not None and found != shape:
            raise UserError(
                f"{self.origin}: the tensor {name} has the shape {list(found)}, but "
                f"{list(shape)} follows from the model's options"
            )
        stored = self._tensors[name]
        self._taken.add(name)
        values = stored.read()
        check_finite(self.origin, name, values)
        return values if values.dtype == np.float64 else values.astype(np.float32)

    def check_all_taken(self, ignored: Iterable[str] = ()) -> None:
        """Raises UserError naming the tensors that were not taken, except those `ignored`."""
        if left := sorted(self._tensors.keys() - self._taken - set(ignored)):
            more = f" and {len(left) - 5} more" if len(left) > 5 else ""
            raise UserError(
                f"{self.origin}: nothing in this architecture reads the tensors "
                f"{', '.join(left[:5])}{more}"
            )
