"""Gated DeltaNet (Yang, Kautz and Hatamizadeh 2024, arXiv:2412.06464).

    q, k, v = silu(conv(W_qkv x)),  q and k scaled to length 1 in each head
    b = sigmoid(W_b x),  w = exp(-exp(a) softplus(W_w x + d))
    S'_t = w_t S_{t-1},  S_t = S'_t + b_t k_t (v_t - S'_t^T k_t)^T,  y_t = S_t^T q_t / sqrt(K)
    out = W_o (norm_per_head(y) * silu(W_g x))

What the state holds at a key is replaced by what a token writes there, where other linear
mixers add to it. `decay` chooses w: none is DeltaNet (2406.06484); head is the above, as in
Qwen3-Next; channel is Kimi's delta attention (2510.26692), where W_w has low rank and
gate=sigmoid. With strength=apart what is erased (b k, a b for each channel of the key) and what
is written (b' v, likewise of the value) are decided apart, as in Gated DeltaNet-2 (2605.22791).

O(L) time, in chunks (`ops.delta_rule`); a decoding step is O(1) and keeps a matrix a head. It
reads forwards only; the encoder runs it in both directions (`both_ways`). A head's state holds at
most head_dim associations.
"""

from dataclasses import dataclass
from functools import partial
from typing import ClassVar, Literal

import jax.numpy as jnp
from flax import linen as nn
from jax import Array
from pydantic import NonNegativeInt

from transformer_jax.layers.initializers import (
    Initializer,
    log_of_uniform,
    softplus_inverse,
)
from transformer_jax.layers.norms import normalize
from transformer_jax.mixers.base import Mixer
from transformer_jax.mixers.gla import GLA, GLAMixer
from transformer_jax.ops.delta_rule import delta_rule_scan, delta_rule_step
from transformer_jax.ops.scans import Inputs


class GatedDeltaNetMixer(GLAMixer):
    """The causal mixer, without position hooks or attention weights."""

    config: "GatedDeltaNet"
    _step = staticmethod(delta_rule_step)

    def setup(self) -> None:
        super().setup()
        c, o = self.context, self.config
        width, axes = c.num_heads * c.head_dim, ("embed", "heads")
        if o.strength == "apart":
            self.erase = c.linear(c.d_model, width, axes)
            self.write = c.linear(c.d_model, o.expand * width, axes)
        else:
            self.strength = c.linear(c.d_model, c.num_heads, axes)

    def _initial_decays(self) -> tuple[Initializer, Initializer]:
        return partial(softplus_inverse, 1e-3, 1e-1), partial(log_of_uniform, 1.0, 16.0)

    @staticmethod
    def _scan(inputs: Inputs, chunk: int) -> Array:
        return delta_rule_scan(inputs, chunk)[0]

    def _parts(self, x_BLD: Array, mixed_BLE: Array, at_L: Array) -> tuple[Array, ...]:
        """q, k, v, e and log w of `ops.delta_rule`."""
        q, k, v = self._split(nn.silu(mixed_BLE.astype(jnp.float32)))
        width = self.context.head_dim
        # The mean square of a vector of length 1 is 1 / K; its scores are then divided by sqrt(K).
        q, k = (normalize(a, epsilon=1e-6 / width, center=False) for a in (q, k))
        q, k = q / width, k * width**-0.5
        if self.config.strength == "apart":
            erased = nn.sigmoid(self.in_heads(self.erase(x_BLD)))
            written = nn.sigmoid(self.in_heads(self.write(x_BLD)))
        else:
            erased = written = nn.sigmoid(self.in_heads(self.strength(x_BLD)))
        return q, k, v * written, k * erased, self._log_decay(x_BLD)


@dataclass(frozen=True)
class GatedDeltaNet(GLA):
    """Gated DeltaNet's forms and sizes."""

    module: ClassVar[type[Mixer]] = GatedDeltaNetMixer
    honours: ClassVar[frozenset[str]] = frozenset()

    decay: Literal["none", "fixed", "head", "channel"] = "head"
    #: what of the state has a rate of its own; fixed: by head, not learned
    conv_width: NonNegativeInt = 4  #: taps of the convolution on q, k and v; 0 = none
    strength: Literal["joint", "apart"] = "joint"
    #: joint: one number a head says how much is erased and written; apart: by channel, for each
