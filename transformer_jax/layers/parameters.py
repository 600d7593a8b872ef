"""Parameters that carry logical axis names."""

from collections.abc import Callable

import jax
from flax import linen as nn


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
