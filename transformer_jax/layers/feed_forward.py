"""Position-wise feed-forward networks.

    mlp   y = down(dropout(f(up(x))))               Vaswani et al. 2017, section 3.3
    glu   y = down(dropout(f(gate(x)) * up(x)))     Shazeer 2020, arXiv:2002.05202

`up`, `gate` and `down` are affine maps (linear without biases), and f is one of
`ACTIVATIONS`. `layers/registry.py` holds what `model.feed_forward` can choose.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import ClassVar, Literal

import jax
import jax.numpy as jnp
from flax import linen as nn
from jax import Array

from transformer_jax.layers.dropout import Dropout, DropoutRate
from transformer_jax.layers.projections import Dense


@jax.custom_jvp
def relu(x: Array) -> Array:
    """max(x, 0). Its derivative needs only the result, so that no one has to keep x."""
    return jnp.maximum(x, 0)


# Not y > 0, which XLA rewrites to x > 0: then x is kept, and cuBLAS cannot apply the activation.
relu.defjvps(lambda dx, y, x: jax.lax.select(y != 0, dx, jnp.zeros_like(dx)))

Activation = Literal["relu", "gelu", "gelu_tanh", "silu", "sigmoid"]

ACTIVATIONS: dict[Activation, Callable[[Array], Array]] = {
    "relu": relu,
    "gelu": partial(jax.nn.gelu, approximate=False),  # x Phi(x), by the error function
    "gelu_tanh": partial(jax.nn.gelu, approximate=True),  # its approximation by tanh
    "silu": jax.nn.silu,  # x sigmoid(x), also called swish
    "sigmoid": jax.nn.sigmoid,  # of the original gated linear unit
}


class FeedForward(nn.Module):
    """Two projections with an activation between them, or three with a gate."""

    config: "Mlp"
    d_model: int
    d_ff: int
    dtypes: dict

    def setup(self) -> None:
        options = {"use_bias": self.config.use_bias, **self.dtypes}
        self.up = Dense(self.d_model, self.d_ff, ("embed", "mlp"), **options)
        if self.config.gated:
            self.gate = Dense(self.d_model, self.d_ff, ("embed", "mlp"), **options)
        self.down = Dense(self.d_ff, self.d_model, ("mlp", "embed"), **options)
        self.dropout = Dropout(self.config.dropout_rate)

    def __call__(self, x: Array) -> Array:
        """[..., D] -> [..., D]."""
        activate = ACTIVATIONS[self.config.activation]
        h = activate(self.gate(x)) * self.up(x) if self.config.gated else activate(self.up(x))
        return self.down(self.dropout(h))


@dataclass(frozen=True)
class FeedForwardConfig:
    """The feed-forward network of each block."""

    def build(self, d_model: int, d_ff: int, dtypes: dict) -> nn.Module:
        """A module that maps [..., d_model] to the same shape through d_ff hidden features."""
        raise NotImplementedError


@dataclass(frozen=True)
class Mlp(FeedForwardConfig):
    """One hidden layer."""

    gated: ClassVar[bool] = False

    activation: Activation = "relu"  #: of the hidden features
    use_bias: bool = True  #: of both layers
    dropout_rate: DropoutRate = 0.0  #: of the hidden features

    def build(self, d_model: int, d_ff: int, dtypes: dict) -> nn.Module:
        return FeedForward(self, d_model, d_ff, dtypes)


@dataclass(frozen=True)
class Glu(Mlp):
    """A hidden layer multiplied by a gate; its three matrices have 3/2 the parameters of `Mlp`.

    The paper's names: GLU (sigmoid), ReGLU (relu), GEGLU (gelu), SwiGLU (silu).
    """

    gated: ClassVar[bool] = True

    activation: Activation = "silu"  #: of the gate
    use_bias: bool = False  #: of all three layers
