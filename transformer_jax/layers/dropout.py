"""Dropout as a module: it owns no parameters, only its place in the random stream."""

import jax
from flax import linen as nn

from transformer_jax.ops.dropout import dropout


class Dropout(nn.Module):
    """See `ops.dropout`. Needs the `dropout` random stream unless deterministic."""

    rate: float

    def key(self, deterministic: bool) -> jax.Array | None:
        """The key of this call, or None where nothing is dropped."""
        return None if deterministic or self.rate == 0.0 else self.make_rng("dropout")

    def __call__(self, x: jax.Array, *, deterministic: bool) -> jax.Array:
        """Any shape; the same shape."""
        return dropout(x, self.rate, self.key(deterministic))
