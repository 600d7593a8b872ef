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
from jax import Array

from transformer_jax.mixers.kernel_attention import FeatureOptions, KernelConfig, KernelCrossConfig


class LinearOptions(FeatureOptions):
    """The feature map has no options."""

    def query_features(self, q: Array) -> Array:
        """elu(q) + 1, positive everywhere."""
        return jax.nn.elu(q.astype(jnp.float32)) + 1.0

    def key_features(self, k: Array) -> tuple[Array, Array]:
        """The same, all on one scale."""
        return self.query_features(k), jnp.zeros(k.shape[:-1], jnp.float32)


@dataclass(frozen=True)
class Linear(LinearOptions, KernelConfig):
    """Options of linear self-attention."""


@dataclass(frozen=True)
class LinearCross(LinearOptions, KernelCrossConfig):
    """Reading the memory linearly has no options."""
