"""The position-wise feed-forward network (Vaswani et al. 2017, section 3.3)."""

import jax
from flax import linen as nn

from transformer_jax.layers.dropout import Dropout
from transformer_jax.layers.projections import Dense

ACTIVATIONS = {"relu": jax.nn.relu, "gelu": jax.nn.gelu, "silu": jax.nn.silu}


class FeedForward(nn.Module):
    """W2 dropout(activation(W1 x + b1)) + b2."""

    d_model: int
    d_ff: int
    activation: str
    dropout_rate: float
    dtypes: dict

    def setup(self) -> None:
        self.up = Dense(self.d_model, self.d_ff, ("embed", "mlp"), **self.dtypes)
        self.down = Dense(self.d_ff, self.d_model, ("mlp", "embed"), **self.dtypes)
        self.dropout = Dropout(self.dropout_rate)

    def __call__(self, x: jax.Array) -> jax.Array:
        """[..., D] -> [..., D]."""
        h = ACTIVATIONS[self.activation](self.up(x))
        return self.down(self.dropout(h))
