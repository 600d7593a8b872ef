"""Parameters that carry logical axis names."""

from collections.abc import Callable
from typing import Any

import jax
from flax import linen as nn
from flax import struct

from transformer_jax.ops.int8 import Matrix


class MatrixBox(nn.LogicallyPartitioned):
    """The box of a parameter that may be an `Int8Matrix`."""

    contracted: int = struct.field(default=0, pytree_node=False)


class Layer(nn.Module):
    """A module with a `param_dtype` and parameters that can be split over a mesh."""

    def weight(
        self,
        name: str,
        init: Callable[..., jax.Array],
        shape: tuple[int, ...],
        axes: tuple[str | None, ...],
    ) -> jax.Array:
        """Declares a parameter, in `setup`.

        Args:
            name: its name in the tree of parameters.
            init: (key, shape, dtype) -> initial value.
            shape: of the parameter.
            axes: the logical name of each axis; `parallel/` maps them to the mesh.
        """
        boxed = nn.with_logical_partitioning(init, axes)
        return self.param(name, boxed, shape, self.param_dtype)

    def matrix(
        self,
        name: str,
        init: Callable[..., jax.Array],
        shape: tuple[int, int],
        axes: tuple[str | None, ...],
        *,
        contracted: int,
    ) -> Matrix:
        """Declares a matrix that can be of int8 in decoding: only `ops.int8` and `matmul` use it.

        Args:
            name: as the other arguments, see `weight`.
            contracted: the axis that products sum over.
        """

        def boxed(*args: Any) -> MatrixBox:
            return MatrixBox(init(*args), axes, mesh=None, contracted=contracted)

        return self.param(name, boxed, shape, self.param_dtype)
