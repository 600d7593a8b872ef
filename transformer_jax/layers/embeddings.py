"""Token embeddings, by default scaled by sqrt(D) as in Vaswani et al. 2017, section 3.4."""

from typing import Any

import jax.numpy as jnp
from flax import linen as nn
from jax import Array

from transformer_jax.layers.parameters import Layer, TableBox
from transformer_jax.ops.matrices import rows
from transformer_jax.ops.sums import product


class Embedding(Layer):
    """A [V, D] table.

    Attributes:
        projects: whether it is the vocabulary projection too: embeddings are tied.
        scale: of the vectors where they are read; None = sqrt(features).
    """

    vocab_size: int
    features: int
    projects: bool = False
    scale: float | None = None
    dtype: Any = jnp.float32
    param_dtype: Any = jnp.float32

    def setup(self) -> None:
        init = nn.initializers.normal(stddev=self.features**-0.5)
        shape = (self.vocab_size, self.features)
        axes = ("vocab", "embed")
        self.table = self.weight("table", init, shape, axes, TableBox, projects=self.projects)

    def __call__(self, ids: Array) -> Array:
        """[...] int32 -> [..., D]."""
        scale = jnp.asarray(self.scale or self.features**0.5, self.dtype)
        return product(rows(self.table, ids).astype(self.dtype), scale)
