"""Performer: FAVOR+ (Choromanski et al. 2020, arXiv:2009.14794).

    y_i = sum_j <phi(q_i), phi(k_j)> v_j / sum_j <phi(q_i), phi(k_j)>
    phi_r(x) = exp(<w_r, x'> - |x'|^2 / 2),   x' = x / head_dim^(1/4)

so that <phi(q), phi(k)> / R estimates exp(<q, k> / sqrt(head_dim)) without bias: with
more features R the layer tends to softmax attention. The w_r are orthogonal Gaussian
draws, constants of the seed and the same in every layer and head; they are not redrawn
during training. O(L R) time and memory, O(R) in a decoding step. It cannot follow
sharp softmax rows: the variance of the estimate grows exponentially with the norm of
queries and keys.

The features stay within the range of float32 because those of each query are divided by
their maximum, which cancels, and those of each key by theirs, which is carried as a log
scale (`ops.kernel_attention`). Neither depends on another token, so a step equals the
parallel form and padding has no effect.
"""

from dataclasses import dataclass

import jax
import jax.numpy as jnp
from jax import Array
from pydantic import NonNegativeInt, PositiveInt

from transformer_jax.errors import UserError
from transformer_jax.mixers.base import MixerContext
from transformer_jax.mixers.kernel_attention import FeatureOptions, KernelConfig, KernelCrossConfig
from transformer_jax.ops.random_features import log_positive_features, orthogonal_directions


@dataclass(frozen=True)
class PerformerOptions(FeatureOptions):
    """The random features."""

    features: PositiveInt = 256  #: R, random features a head; the paper advises K log K
    seed: NonNegativeInt = 0  #: of the random features

    def key_features(self, k: Array) -> tuple[Array, Array]:
        """exp(<w, k'> - |k'|^2 / 2) divided by its maximum over the features; its logarithm."""
        width = k.shape[-1]
        directions_RK = orthogonal_directions(self.features, width, self.seed)
        log_phi = log_positive_features(k * width**-0.25, directions_RK)
        log_scale = jax.lax.stop_gradient(log_phi.max(axis=-1))
        return jnp.exp(log_phi - log_scale[..., None]), log_scale


@dataclass(frozen=True)
class Performer(PerformerOptions, KernelConfig):
    """Options of FAVOR+ self-attention."""

    def check(self, context: MixerContext, hooks: frozenset[str]) -> None:
        super().check(context, hooks)
        if "rotate" in hooks and self.features % 2:
            raise UserError(
                f"features={self.features}: rotary positions turn pairs of features, so their "
                "number must be even"
            )


@dataclass(frozen=True)
class PerformerCross(PerformerOptions, KernelCrossConfig):
    """Options of FAVOR+ when it reads the memory."""
