"""Normalisation over the last axis; the statistics are float32 whatever the inputs.

    LayerNorm   (x - mean(x)) / sqrt(var(x) + epsilon) * scale + bias
                Ba et al. 2016, arXiv:1607.06450
    RMSNorm     x / sqrt(mean(x^2) + epsilon) * scale
                Zhang and Sennrich 2019, arXiv:1910.07467
    GroupNorm   LayerNorm over each of several equal parts of the axis
                Wu and He 2018, arXiv:1803.08494, without the axes of space

`layers/registry.py` holds what `model.norm` can choose.
"""

from dataclasses import dataclass
from typing import Annotated, Any

import jax
import jax.numpy as jnp
from annotated_types import Gt
from flax import linen as nn
from jax import Array

from transformer_jax.layers.parameters import Layer
from transformer_jax.ops.sums import mean, product


def normalize(x: Array, *, epsilon: float, center: bool = True, groups: int = 1) -> Array:
    """Scales x [..., D] to mean square 1, after subtracting the mean if `center`; float32.

    Args:
        x: any floating dtype.
        epsilon: added to the mean square.
        center: subtract the mean first, so that the mean square is the variance.
        groups: number of equal parts of the last axis, each with its own statistics.
    """
    shape, x = x.shape, x.astype(jnp.float32)
    if groups > 1:
        x = x.reshape(*shape[:-1], groups, -1)
    if center:
        x = x - mean(x)
    mean_square = mean(x * x)
    return (x * jax.lax.rsqrt(mean_square + epsilon)).reshape(shape)


class Norm(Layer):
    """`normalize`, then a learned scale and bias for each feature.

    Attributes:
        features: size of the last axis.
        axis: logical name of the last axis.
    """

    features: int
    epsilon: float
    center: bool = True
    use_bias: bool = True
    groups: int = 1
    axis: str = "embed"
    dtype: Any = jnp.float32
    param_dtype: Any = jnp.float32

    def setup(self) -> None:
        shape, axes = (self.features,), (self.axis,)
        self.scale = self.weight("scale", nn.initializers.ones, shape, axes)
        if self.use_bias:
            self.bias = self.weight("bias", nn.initializers.zeros, shape, axes)

    def __call__(self, x: Array) -> Array:
        """[..., features] -> [..., features]."""
        y = normalize(x, epsilon=self.epsilon, center=self.center, groups=self.groups)
        y = product(y, jax.lax.broadcast_to_rank(self.scale, y.ndim))
        if self.use_bias:
            y = y + jax.lax.broadcast_to_rank(self.bias, y.ndim)
        return y.astype(self.dtype)


@dataclass(frozen=True)
class NormConfig:
    """The norm of a model: in each residual connection and, with pre-norm, after each stack."""

    epsilon: Annotated[float, Gt(0)] = 1e-6  #: added to the variance or mean square

    def build(self, features: int, *, dtype: Any, param_dtype: Any) -> nn.Module:
        """A module that maps [..., features] to the same shape in `dtype`."""
        raise NotImplementedError


@dataclass(frozen=True)
class LayerNorm(NormConfig):
    """LayerNorm, as in Vaswani et al. 2017; BART and its family use epsilon=1e-5."""

    use_bias: bool = True  #: a learned number added to each feature

    def build(self, features: int, **dtypes: Any) -> nn.Module:
        return Norm(features, self.epsilon, use_bias=self.use_bias, **dtypes)


@dataclass(frozen=True)
class RMSNorm(NormConfig):
    """RMSNorm, as in T5: no mean and no bias."""

    def build(self, features: int, **dtypes: Any) -> nn.Module:
        return Norm(features, self.epsilon, center=False, use_bias=False, **dtypes)
