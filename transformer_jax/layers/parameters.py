"""Parameters that carry logical axis names."""

from collections.abc import Callable
from typing import Any

import jax
from flax import linen as nn
from flax import struct

from transformer_jax.ops.matrices import Matrix, Table


class MatrixBox(nn.LogicallyPartitioned):
    """The box of a matrix that decoding may hold in another form (`ops.matrices`)."""

    contracted: int = struct.field(default=0, pytree_node=False)  #: the axis products sum over


class TableBox(MatrixBox):
    """The box of a table of embeddings [V, D]."""

    contracted: int = struct.field(default=1, pytree_node=False)
    projects: bool = struct.field(default=False, pytree_node=False)  #: to the vocabulary too


class Layer(nn.Module):
    """A module whose parameters can be split over a mesh.

    A subclass has the dtype of its parameters as `param_dtype`: a field, or a property.
    """

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
    ) -> Matrix:
        """Declares a matrix [I, O] that only `ops.matrices` and `matmul` use; as `weight`."""

        def boxed(*args: Any) -> MatrixBox:
            return MatrixBox(init(*args), axes, mesh=None)

        return self.param(name, boxed, shape, self.param_dtype)

    def embeddings(
        self,
        name: str,
        init: Callable[..., jax.Array],
        shape: tuple[int, int],
        axes: tuple[str | None, ...],
        *,
        projects: bool,
    ) -> Matrix | Table:
        """Declares a table [V, D] of which only `ops.matrices.rows` and its `.T` are used.

        Args:
            name: as the other arguments, see `weight`.
            projects: whether its transpose is the projection to the vocabulary.
        """

        def boxed(*args: Any) -> TableBox:
            return TableBox(init(*args), axes, mesh=None, projects=projects)

        return self.param(name, boxed, shape, self.param_dtype)
