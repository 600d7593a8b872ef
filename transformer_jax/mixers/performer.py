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
from pydantic import NonNegativeInt, PositiveInt

from transformer_jax.errors import UserError
from transformer_jax.mixers.base import MixerContext
from transformer_jax.mixers.kernel_attention import (
    FeatureMap,
    FeatureOptions,
    KernelConfig,
    KernelCrossConfig,
)
from transformer_jax.ops.random_features import log_positive_features, orthogonal_directions


class PositiveFeatures(FeatureMap):
    """exp(<w, x'> - |x'|^2 / 2), divided by its maximum over the features."""

    def __init__(self, features: int, head_dim: int, seed: int) -> None:
        self.num_features = features
        self.directions_RK = orthogonal_directions(features, head_dim, seed)

    def queries(self, q: jax.Array) -> jax.Array:
        """[..., K] -> [..., R]."""
        return self.keys(q)[0]

    def keys(self, k: jax.Array) -> tuple[jax.Array, jax.Array]:
        """[..., K] -> [..., R] with maximum 1, and the log of that maximum."""
        log_phi = log_positive_features(k * k.shape[-1] ** -0.25, self.directions_RK)
        log_scale = jax.lax.stop_gradient(log_phi.max(axis=-1))
        return jnp.exp(log_phi - log_scale[..., None]), log_scale


@dataclass(frozen=True)
class PerformerOptions(FeatureOptions):
    """The random features."""

    features: PositiveInt = 256  #: R, random features a head; the paper advises K log K
    seed: NonNegativeInt = 0  #: of the random features

    def feature_map(self, head_dim: int) -> FeatureMap:
        """FAVOR+."""
        return PositiveFeatures(self.features, head_dim, self.seed)


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
