"""Token embeddings, by default scaled by sqrt(D) as in Vaswani et al. 2017, section 3.4."""

from typing import Any

import jax
import jax.numpy as jnp
from flax import linen as nn

from transformer_jax.layers.parameters import Layer
from transformer_jax.ops.int8 import rows


class Embedding(Layer):
    """A [V, D] table; also the vocabulary projection if embeddings are tied.

    Attributes:
        scale: of the vectors where they are read; None = sqrt(features).
    """

    vocab_size: int
    features: int
    scale: float | None = None
    dtype: Any = jnp.float32
    param_dtype: Any = jnp.float32

    def setup(self) -> None:
        init = nn.initializers.normal(stddev=self.features**-0.5)
        shape = (self.vocab_size, self.features)
        self.table = self.matrix("table", init, shape, ("vocab", "embed"), contracted=1)

    def __call__(self, ids: jax.Array) -> jax.Array:
        """[...] int32 -> [..., D]."""
        scale = jnp.asarray(self.scale or self.features**0.5, self.dtype)
        return rows(self.table, ids).astype(self.dtype) * scale
