"""Parameters that carry logical axis names."""

from collections.abc import Callable
from typing import Any

from flax import linen as nn, struct
from jax import Array

from transformer_jax.ops.matrices import Int8Matrix


class MatrixBox(nn.LogicallyPartitioned):
    """The box of a matrix that decoding may hold in another form (`ops.matrices`)."""

    contracted: int = struct.field(default=0, pytree_node=False)  #: the axis products sum over


class TableBox(MatrixBox):
    """The box of a table of embeddings [V, D]."""

    contracted: int = struct.field(default=1, pytree_node=False)
    projects: bool = struct.field(default=False, pytree_node=False)  #: to the vocabulary too


class Layer(nn.Module):
    """A module whose parameters can be split over a mesh.

    A subclass has the dtype of its parameters as `param_dtype`: a field, or that of `InContext`.
    """

    def weight(
        self,
        name: str,
        init: Callable[..., Array],
        shape: tuple[int, ...],
        axes: tuple[str | None, ...],
        box: type[nn.LogicallyPartitioned] = nn.LogicallyPartitioned,
        **box_options: Any,
    ) -> Any:
        """Declares a parameter, in `setup`.

        Args:
            name: its name in the tree of parameters.
            init: (key, shape, dtype) -> initial value.
            shape: of the parameter.
            axes: the logical name of each axis; `parallel/` maps them to the mesh.
            box: `MatrixBox` for a matrix [I, O] that only `ops.matrices` and `matmul` use;
                `TableBox` for a table [V, D] of which only `ops.matrices.rows` and `.T` are used.
            box_options: further fields of the box.

        Returns:
            An array, or the form in which decoding holds a matrix or table.
        """
        held = self.get_variable("params", name)
        if isinstance(held, Int8Matrix):  # of another shape than the parameter
            return held

        def boxed(*args: Any) -> nn.LogicallyPartitioned:
            return box(init(*args), axes, mesh=None, **box_options)

        return self.param(name, boxed, shape, self.param_dtype)


class InContext(Layer):
    """A layer with a field `context`, which says the dtype of its parameters."""

    @property
    def param_dtype(self) -> str:
        """Of its parameters."""
        return self.context.param_dtype
