"""Dropout as a module, which has no parameters and draws a key for each call."""

from typing import Annotated

from annotated_types import Ge, Lt
from flax import linen as nn
from jax import Array

from transformer_jax.ops.dropout import dropout

#: The share that is dropped, as a field of a config.
DropoutRate = Annotated[float, Ge(0.0), Lt(1.0)]


class Dropout(nn.Module):
    """See `ops.dropout`. On where the module is applied with a "dropout" key, off elsewhere."""

    rate: float

    def key(self) -> Array | None:
        """The key of this call, or None if nothing is dropped."""
        return self.make_rng("dropout") if self.rate and self.has_rng("dropout") else None

    def __call__(self, x: Array) -> Array:
        """Any shape; the same shape."""
        return dropout(x, self.rate, self.key())
