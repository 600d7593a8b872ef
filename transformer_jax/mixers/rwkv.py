"""RWKV version 6, "Finch" (Peng et al. 2024, arXiv:2404.05892), and 7: their time mixing.

Each input of the mixer is a blend of the token and the one before it, by an amount that
depends on both (low-rank maps):

    lerp_i(t) = x_t + (x_{t-1} - x_t) (mu_i + B_i tanh(A_i (x_t + (x_{t-1} - x_t) mu)))
    r, k, v, g = W_i lerp_i for i = r, k, v, g
    w = exp(-exp(d)),   d = b + B tanh(A lerp_w)           one decay a channel and token

and then, in each head, with a learned bonus u for the token itself,

    y_t = r_t (S_{t-1} + diag(u) k_t^T v_t),    S_t = diag(w_t) S_{t-1} + k_t^T v_t
    out = W_o (silu(g) * norm_per_head(y))

O(L) in time, in chunks whose weights are exp of sums of logarithms (`ops.scans`); a
decoding step is O(1) and keeps the last token and a matrix a head. Version 7, "Goose" (Peng et al.
2025, arXiv:2503.14456), has blends that do not depend on the tokens, and a state that also
erases, as the delta rule does, along a key of its own:

    w = exp(-e^(-1/2) sigmoid(d)),  a = sigmoid(b' + B' A' lerp_a),  c = k * scale, of length 1
    S_t = (diag(w_t) - (a_t c_t)^T c_t) S_{t-1} + k'_t^T v_t,    k' = k (1 + (a - 1) rate)
    y_t = norm_per_head(r_t S_t) + (sum r_t k'_t u) v_t,    out = W_o (g * y)

Its mix of values with those of the first layer is left out. RWKV's other half,
channel mixing, is a feed-forward network; the block's own replaces it here.

It reads forwards only; the encoder runs it in both directions (`both_ways`). The state must
hold everything about the past, so it cannot look up an arbitrary earlier token exactly.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Literal

import jax
import jax.numpy as jnp
from flax import linen as nn
from jax import Array
from pydantic import PositiveInt

from transformer_jax.layers.initializers import Initializer, along_last_axis
from transformer_jax.layers.parameters import InContext
from transformer_jax.layers.projections import Dense
from transformer_jax.mixers.base import Mixer, MixerContext, State
from transformer_jax.mixers.both_ways import BothWaysConfig, RecurrentState
from transformer_jax.ops.delta_rule import delta_rule_scan, delta_rule_step
from transformer_jax.ops.scans import Inputs, channel_decay_scan, channel_decay_step
from transformer_jax.positions.base import Position
from transformer_jax.settings.types import PowerOfTwo

#: log(-log w) never exceeds this: e^-54 is nothing in float32, and beyond it the
#: derivative of the double exponential is infinity times zero.
_STRONGEST = 4.0


Activation = Callable[[Array], Array]


@dataclass(frozen=True)
class RWKV(BothWaysConfig):
    """RWKV's sizes."""

    version: Literal[6, 7] = 6  #: Finch or Goose
    lerp_rank: PositiveInt = 32
    #: rank of the maps that blend a token with the one before it; version 6 alone
    decay_rank: PositiveInt = 64
    #: rank of the map to the decays; in version 7 also to a, and half of that to g
    chunk: PowerOfTwo = 32  #: positions handled by one matrix product; a power of two

    def check(self, context: MixerContext, hooks: frozenset[str]) -> None:
        super().check(context, hooks)
        if self.version == 7:
            self.refuse_unused("lerp_rank", "the blends of version 7 have no such map")

    def build_causal(self, context: MixerContext, position: Position) -> Mixer:
        build = RWKVMixer if self.version == 6 else RWKV7Mixer
        return build(self, context, position)


class LowRank(InContext):
    """b + B f(A x): a token-dependent offset through a narrow middle; f = tanh unless given."""

    context: MixerContext
    rank: int
    features: int
    out_axis: str
    bias_init: Initializer
    activation: Activation = jnp.tanh

    def setup(self) -> None:
        c, small = self.context, nn.initializers.normal(1e-2)
        axes = ("embed", "rank", self.out_axis)
        self.down = c.linear(c.d_model, self.rank, axes[:2])
        self.up = c.linear(self.rank, self.features, axes[1:], kernel_init=small)
        self.bias = self.weight("bias", self.bias_init, (self.features,), (self.out_axis,))

    def __call__(self, x: Array) -> Array:
        """[..., D] -> [..., features]."""
        return jax.lax.broadcast_to_rank(self.bias, x.ndim) + self.up(self.activation(self.down(x)))


class RWKVMixer(Mixer):
    """The causal mixer, without position hooks or attention weights."""

    config: RWKV

    def setup(self) -> None:
        c = self.context
        width = c.num_heads * c.head_dim
        into = partial(c.linear, c.d_model, width, ("embed", "heads"))
        self.receptance, self.key, self.value = into(), into(), into()
        # Early channels look at the token before, late ones at the token itself.
        self._set_up_version(width, partial(along_last_axis, lambda i: 1.0 - i / c.d_model))
        self.norm = c.norm(width, 64e-5, groups=c.num_heads, axis="heads")
        self.out = c.linear(width, c.d_model, ("heads", "embed"))

    def _set_up_version(self, width: int, blend_init: Initializer) -> None:
        c, o = self.context, self.config
        self.blend = self.weight("blend", blend_init, (c.d_model,), ("embed",))

        def lerp() -> LowRank:
            return LowRank(c, o.lerp_rank, c.d_model, "embed", blend_init)

        self.lerp_receptance, self.lerp_key, self.lerp_value = lerp(), lerp(), lerp()
        self.lerp_gate, self.lerp_decay = lerp(), lerp()
        self.gate = c.linear(c.d_model, width, ("embed", "heads"))
        # From decays of about e^-0.0025 a token to e^-0.37, as in the authors' code.
        decay_init = partial(along_last_axis, lambda i: -6.0 + 5.0 * i / max(width - 1, 1))
        self.decay = LowRank(c, o.decay_rank, width, "heads", decay_init)
        bonuses = partial(along_last_axis, lambda i: 1.0 - i / width)
        self.bonus = self.weight("bonus", bonuses, (width,), ("heads",))

    def __call__(self, x_BLD: Array, mask_BL: Array) -> Array:
        # Without the mask: padding follows every real token, so it is never read.
        previous_BLD = jnp.pad(x_BLD, ((0, 0), (1, 0), (0, 0)))[:, :-1]
        inputs, gate_BLE = self._project(x_BLD, previous_BLD)
        return self._gated(channel_decay_scan(inputs, self.config.chunk), gate_BLE)

    def init_state(self, batch: int, max_length: int) -> RecurrentState:
        """The last token, and S."""
        c = self.context
        matrix = jnp.zeros((batch, c.num_heads, c.head_dim, c.head_dim), jnp.float32)
        return RecurrentState(jnp.zeros((batch, c.d_model), c.dtype), matrix)

    def step(self, x_BD: Array, state: RecurrentState, position: Array) -> tuple[Array, State]:
        """One step of the recurrence."""
        inputs, gate_BE = self._project(x_BD, state.recent)
        y_BHK, matrix = channel_decay_step(inputs, state.hidden)
        token = x_BD.astype(state.recent.dtype)
        return self._gated(y_BHK, gate_BE), RecurrentState(token, matrix)

    def _project(self, x: Array, previous: Array) -> tuple[Inputs, Array]:
        """(r, k, v, log w [..., H, K], own weight [..., H]) and the gate [..., H * K]."""
        change = previous - x
        guide = (x + change * jax.lax.broadcast_to_rank(self.blend, x.ndim)).astype(x.dtype)

        def blended(lerp: LowRank) -> Array:
            return (x + change * lerp(guide)).astype(x.dtype)

        def projected(project: Dense, lerp: LowRank) -> Array:
            return project.split(blended(lerp), self.context.num_heads).astype(jnp.float32)

        r = projected(self.receptance, self.lerp_receptance)
        k = projected(self.key, self.lerp_key)
        v = projected(self.value, self.lerp_value)
        strength = self.in_heads(self.decay(blended(self.lerp_decay)))
        log_decay = -jnp.exp(jnp.minimum(strength, _STRONGEST))
        bonus = jax.lax.broadcast_to_rank(self.in_heads(self.bonus), r.ndim)
        own_weight = (r * bonus * k).sum(axis=-1)
        return (r, k, v, log_decay, own_weight), self.gate(blended(self.lerp_gate))

    def _gated(self, y: Array, gate: Array) -> Array:
        y = self.norm(y.reshape(*y.shape[:-2], -1))
        return self.out(y * nn.silu(gate))


class RWKV7Mixer(RWKVMixer):
    """The causal mixer of version 7."""

    def _set_up_version(self, width: int, blend_init: Initializer) -> None:
        c, o, heads = self.context, self.config, ("heads",)
        #: of r, w, k, v, a and g
        self.blends = self.weight("blends", blend_init, (6, c.d_model), (None, "embed"))

        def low_rank(rank: int, init: Initializer, activation: Activation) -> LowRank:
            return LowRank(c, rank, width, "heads", init, activation)

        zeros, constant = nn.initializers.zeros, nn.initializers.constant
        # From decays of about e^-0.001 a token to e^-0.1.
        decay_init = partial(along_last_axis, lambda i: -6.5 + 5.0 * i / max(width - 1, 1))
        self.decay = low_rank(o.decay_rank, decay_init, jnp.tanh)
        self.rate = low_rank(o.decay_rank, zeros, lambda x: x)
        self.gate = low_rank(2 * o.decay_rank, zeros, nn.sigmoid)
        self.erased_scale = self.weight("erased_scale", constant(0.85), (width,), heads)
        self.key_rate = self.weight("key_rate", nn.initializers.ones, (width,), heads)
        self.bonus = self.weight("bonus", zeros, (width,), heads)

    def __call__(self, x_BLD: Array, mask_BL: Array) -> Array:
        # Without the mask: padding follows every real token, so it is never read.
        previous_BLD = jnp.pad(x_BLD, ((0, 0), (1, 0), (0, 0)))[:, :-1]
        turns, own_BLHK, gate_BLE = self._turns(x_BLD, previous_BLD)
        batch, length, *heads = own_BLHK.shape
        pairs = (jnp.stack(pair, axis=2) for pair in zip(*turns, strict=True))
        inputs = tuple(pair.reshape(batch, 2 * length, *heads) for pair in pairs)
        y, _ = delta_rule_scan(inputs, 2 * self.config.chunk)
        return self._joined(y[:, 1::2], own_BLHK, gate_BLE)

    def step(self, x_BD: Array, state: RecurrentState, position: Array) -> tuple[Array, State]:
        """One step of the recurrence."""
        (erase, write), own_BHK, gate_BE = self._turns(x_BD, state.recent)
        _, matrix = delta_rule_step(erase, state.hidden)
        y_BHK, matrix = delta_rule_step(write, matrix)
        token = x_BD.astype(state.recent.dtype)
        return self._joined(y_BHK, own_BHK, gate_BE), RecurrentState(token, matrix)

    def _turns(self, x: Array, previous: Array) -> tuple[tuple[Inputs, Inputs], Array, Array]:
        """Two turns of `ops.delta_rule` for each token, its own share of y, and the gate.

        The first turn decays and erases, the second one writes and reads. What is erased is read
        before the decay, which is never below e^-0.61, so the decay may divide.
        """
        blends = (jax.lax.broadcast_to_rank(blend, x.ndim) for blend in self.blends)
        blended = [(x + (previous - x) * blend).astype(x.dtype) for blend in blends]
        to_r, to_w, to_k, to_v, to_a, to_g = blended

        heads = self.in_heads

        def learned(weight: Array) -> Array:
            return jax.lax.broadcast_to_rank(heads(weight), x.ndim + 1)

        r, k, v = heads(self.receptance(to_r)), heads(self.key(to_k)), heads(self.value(to_v))
        log_w = -math.exp(-0.5) * nn.sigmoid(heads(self.decay(to_w)))
        a = nn.sigmoid(heads(self.rate(to_a)))
        erased = k * learned(self.erased_scale)
        erased = erased * jax.lax.rsqrt((erased * erased).sum(axis=-1, keepdims=True) + 1e-12)
        k = k * (1.0 + (a - 1.0) * learned(self.key_rate))
        own = (r * k * learned(self.bonus)).sum(axis=-1, keepdims=True) * v
        none = jnp.zeros_like(r)
        erase = (none, a * erased, none, erased * jnp.exp(-log_w), log_w)
        return (erase, (r, k, v, none, none)), own, self.gate(to_g)

    def _joined(self, y: Array, own: Array, gate: Array) -> Array:
        y = self.norm(y.reshape(gate.shape)) + own.reshape(gate.shape)
        return self.out((y * gate).astype(gate.dtype))
