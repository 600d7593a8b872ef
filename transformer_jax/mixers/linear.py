"""Linear Transformer (Katharopoulos, Vyas, Pappas & Fleuret 2020, arXiv:2006.16236).

    y_i = sum_j <phi(q_i), phi(k_j)> v_j / sum_j <phi(q_i), phi(k_j)>,   phi(x) = elu(x) + 1

O(L) time and memory in training and O(1) in a decoding step, whose state is one
matrix of head_dim x head_dim per head. It cannot point at one token as sharply as
softmax does: its weights are not exponential in the scores, and its state holds at
most head_dim associations without interference.
"""

from dataclasses import dataclass

import jax
import jax.numpy as jnp

from transformer_jax.mixers.kernel_attention import (
    FeatureMap,
    FeatureOptions,
    KernelConfig,
    KernelCrossConfig,
)


class EluFeatures(FeatureMap):
    """phi(x) = elu(x) + 1, positive everywhere."""

    def __init__(self, head_dim: int) -> None:
        self.num_features = head_dim

    def queries(self, q: jax.Array) -> jax.Array:
        """[..., K] -> [..., K]."""
        return jax.nn.elu(q.astype(jnp.float32)) + 1.0

    def keys(self, k: jax.Array) -> tuple[jax.Array, jax.Array]:
        """[..., K] -> [..., K], all on one scale."""
        return self.queries(k), jnp.zeros(k.shape[:-1], jnp.float32)


class LinearOptions(FeatureOptions):
    """The feature map has no options."""

    def feature_map(self, head_dim: int) -> FeatureMap:
        return EluFeatures(head_dim)


@dataclass(frozen=True)
class Linear(LinearOptions, KernelConfig):
    """Options of linear self-attention."""


@dataclass(frozen=True)
class LinearCross(LinearOptions, KernelCrossConfig):
    """Reading the memory linearly has no options."""
