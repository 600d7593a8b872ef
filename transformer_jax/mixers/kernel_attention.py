"""What `linear` and `performer` share: everything except the feature map.

    y_i = sum_j <phi(q_i), phi(k_j)> v_j / sum_j <phi(q_i), phi(k_j)>

computed as Q (K^T V), see `ops.kernel_attention`. A decoder's state is K^T V and the
sum of the keys' features: its size is the same after one token and after a thousand.

With rotary positions the features are rotated in the numerator only, so the
normaliser stays positive (Su et al. 2021, arXiv:2104.09864, section 3.3).
"""

from dataclasses import dataclass
from typing import ClassVar

import jax
import jax.numpy as jnp
from jax import Array
from pydantic import PositiveInt

from transformer_jax.mixers.base import (
    CrossMixer,
    CrossMixerConfig,
    Mixer,
    MixerConfig,
    MixerContext,
    MixerModule,
)
from transformer_jax.mixers.heads import HeadProjections
from transformer_jax.ops.attention import MASKED
from transformer_jax.ops.kernel_attention import (
    KernelSums,
    causal_kernel_attention,
    empty_sums,
    kernel_attention_step,
    read_sums,
    sum_keys,
)


class FeatureOptions:
    """The options of a feature map phi."""

    def query_features(self, q: Array) -> Array:
        """[..., K] -> [..., R] float32, up to a positive factor of each query's own."""
        return self.key_features(q)[0]

    def key_features(self, k: Array) -> tuple[Array, Array]:
        """[..., K] -> features [..., R] and their log scale [...], float32."""
        raise NotImplementedError


class FeatureHeads(MixerModule):
    """Projections, for self- and cross-attention."""

    def setup(self) -> None:
        self.heads = HeadProjections(self.context)


class KernelAttention(FeatureHeads, Mixer):
    """Self-attention through a feature map."""

    config: "KernelConfig"

    def __call__(self, x_BLD: Array, mask_BL: Array) -> Array:
        at_L = jnp.arange(x_BLD.shape[1])
        q_BLHR, k_BLHR, v_BLHV, log_scale_BLH, norm_q, norm_k = self._features(x_BLD, at_L)
        log_scale_BLH = jnp.where(mask_BL[..., None], log_scale_BLH, MASKED)
        if self.context.causal:
            y_BLHV = causal_kernel_attention(
                q_BLHR, k_BLHR, v_BLHV, log_scale_BLH, self.config.chunk, norm_q, norm_k
            )
        else:
            y_BLHV = read_sums(q_BLHR, sum_keys(k_BLHR, v_BLHV, log_scale_BLH, norm_k), norm_q)
        return self.heads.join(y_BLHV.astype(v_BLHV.dtype))

    def init_state(self, batch: int, max_length: int) -> KernelSums:
        """The same size whatever `max_length` is."""
        c = self.context
        keys_HK = jax.ShapeDtypeStruct((c.num_heads, c.head_dim), jnp.float32)
        features_HR, _ = jax.eval_shape(self.config.key_features, keys_HK)
        heads, features = features_HR.shape
        return empty_sums(batch, heads, features, c.head_dim)

    def step(self, x_BD: Array, state: KernelSums, position: Array) -> tuple[Array, KernelSums]:
        """Adds this token's key and value to the sums, and reads them."""
        of_token = [x[:, 0] for x in self._features(x_BD[:, None], position[None])]
        y_BHV, state = kernel_attention_step(of_token, state)
        return self.heads.join(y_BHV.astype(of_token[2].dtype)), state

    def _features(self, x_BLD: Array, at_L: Array) -> tuple[Array, ...]:
        """Queries and keys, values, log scales; then queries and keys for the normaliser."""
        k_BLHK, v_BLHV = self.heads.keys_values(x_BLD)
        q_BLHR = self.config.query_features(self.heads.queries(x_BLD))
        k_BLHR, log_scale_BLH = self.config.key_features(k_BLHK)
        rotated = self.position.rotate(q_BLHR, k_BLHR, at_L, at_L)
        return (*rotated, v_BLHV, log_scale_BLH, q_BLHR, k_BLHR)


@dataclass(frozen=True, kw_only=True)
class KernelConfig(FeatureOptions, MixerConfig):
    """What the options of `linear` and `performer` have in common."""

    module: ClassVar[type[Mixer]] = KernelAttention
    honours: ClassVar[frozenset[str]] = frozenset({"rotate"})

    chunk: PositiveInt = 64  #: decoder only; training works in chunks; changes cost, not result

    def check(self, context: MixerContext, hooks: frozenset[str]) -> None:
        if not context.causal:
            self.refuse_unused("chunk", "only a decoder trains in chunks; set it in model.decoder")


class KernelCrossAttention(FeatureHeads, CrossMixer):
    """Reads the memory through its sums: a query costs the same for any memory length."""

    config: "KernelCrossConfig"

    def project(self, memory_BMD: Array, mask_BM: Array) -> KernelSums:
        """K^T V of the memory."""
        k_BMHK, v_BMHV = self.heads.keys_values(memory_BMD)
        k_BMHR, log_scale_BMH = self.config.key_features(k_BMHK)
        return sum_keys(k_BMHR, v_BMHV, jnp.where(mask_BM[..., None], log_scale_BMH, MASKED))

    def read(self, x_BTD: Array, projected: KernelSums) -> Array:
        q_BTHR = self.config.query_features(self.heads.queries(x_BTD))
        y_BTHV = read_sums(q_BTHR, projected)
        return self.heads.join(y_BTHV.astype(x_BTD.dtype))


@dataclass(frozen=True)
class KernelCrossConfig(FeatureOptions, CrossMixerConfig):
    """What the options of `linear` and `performer` as readers of the memory have in common."""

    module: ClassVar[type[CrossMixer]] = KernelCrossAttention
