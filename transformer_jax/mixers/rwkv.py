"""RWKV version 6, "Finch": its time mixing (Peng et al. 2024, arXiv:2404.05892).

Each input of the mixer is a blend of the token and the one before it, by an amount that
depends on both (low-rank maps):

    lerp_i(t) = x_t + (x_{t-1} - x_t) (mu_i + B_i tanh(A_i (x_t + (x_{t-1} - x_t) mu)))
    r, k, v, g = W_i lerp_i for i = r, k, v, g
    w = exp(-exp(d)),   d = b + B tanh(A lerp_w)           one decay a channel and token

and then, in each head, with a learned bonus u for the token itself,

    y_t = r_t (S_{t-1} + diag(u) k_t^T v_t),    S_t = diag(w_t) S_{t-1} + k_t^T v_t
    out = W_o (silu(g) * norm_per_head(y))

O(L) in time, in chunks whose weights are exp of sums of logarithms (`ops.scans`); a
decoding step is O(1) and keeps the last token and a matrix a head. RWKV's other half,
channel mixing, is a feed-forward network; the block's own replaces it here.

It reads forwards only; the encoder runs it in both directions (`both_ways`). The state must
hold everything about the past, so it cannot look up an arbitrary earlier token exactly.
"""

from dataclasses import dataclass
from typing import ClassVar

import jax
import jax.numpy as jnp
from flax import linen as nn
from pydantic import PositiveInt

from transformer_jax.layers.initializers import Initializer, along_last_axis
from transformer_jax.layers.norms import Norm
from transformer_jax.layers.parameters import Layer
from transformer_jax.layers.projections import Dense
from transformer_jax.mixers.base import Mixer, MixerContext
from transformer_jax.mixers.both_ways import BothWaysConfig, RecurrentState
from transformer_jax.ops.scans import channel_decay_scan, channel_decay_step
from transformer_jax.positions.base import Position
from transformer_jax.settings.types import PowerOfTwo

#: log(-log w) never exceeds this: e^-54 is nothing in float32, and beyond it the
#: derivative of the double exponential is infinity times zero.
_STRONGEST = 4.0


@dataclass(frozen=True)
class RWKV(BothWaysConfig):
    """RWKV's sizes."""

    knows_order: ClassVar[bool] = True

    lerp_rank: PositiveInt = 32  #: rank of the maps that blend a token with the one before it
    decay_rank: PositiveInt = 64  #: rank of the map to the decays
    chunk: PowerOfTwo = 32  #: positions handled by one matrix product; a power of two

    def build_causal(self, context: MixerContext, position: Position) -> Mixer:
        return RWKVMixer(self, context, position)


class LowRank(Layer):
    """b + B tanh(A x): a token-dependent offset through a narrow middle."""

    context: MixerContext
    rank: int
    features: int
    out_axis: str
    bias_init: Initializer

    @property
    def param_dtype(self) -> str:
        """Of the bias."""
        return self.context.param_dtype

    def setup(self) -> None:
        bare, small = {"use_bias": False, **self.context.dtypes}, nn.initializers.normal(1e-2)
        axes = ("embed", "rank", self.out_axis)
        self.down = Dense(self.context.d_model, self.rank, axes[:2], **bare)
        self.up = Dense(self.rank, self.features, axes[1:], kernel_init=small, **bare)
        self.bias = self.weight("bias", self.bias_init, (self.features,), (self.out_axis,))

    def __call__(self, x: jax.Array) -> jax.Array:
        """[..., D] -> [..., features]."""
        return jax.lax.broadcast_to_rank(self.bias, x.ndim) + self.up(jnp.tanh(self.down(x)))


class RWKVMixer(Mixer):
    """The causal mixer, without position hooks or attention weights."""

    config: RWKV

    def setup(self) -> None:
        c, o = self.context, self.config
        width = c.num_heads * c.head_dim
        # Early channels look at the token before, late ones at the token itself.
        blend_init = along_last_axis(lambda i: 1.0 - i / c.d_model)
        self.blend = self.weight("blend", blend_init, (c.d_model,), ("embed",))

        def lerp() -> LowRank:
            return LowRank(c, o.lerp_rank, c.d_model, "embed", blend_init)

        self.lerp_receptance, self.lerp_key, self.lerp_value = lerp(), lerp(), lerp()
        self.lerp_gate, self.lerp_decay = lerp(), lerp()

        def into() -> Dense:
            return Dense(c.d_model, width, ("embed", "heads"), use_bias=False, **c.dtypes)

        self.receptance, self.key, self.value, self.gate = into(), into(), into(), into()
        # From decays of about e^-0.0025 a token to e^-0.37, as in the authors' code.
        decay_init = along_last_axis(lambda i: -6.0 + 5.0 * i / max(width - 1, 1))
        self.decay = LowRank(c, o.decay_rank, width, "heads", decay_init)
        bonuses = along_last_axis(lambda i: 1.0 - i / width)
        self.bonus = self.weight("bonus", bonuses, (width,), ("heads",))
        dtypes = {"dtype": c.dtype, "param_dtype": c.param_dtype}
        self.norm = Norm(width, 64e-5, groups=c.num_heads, axis="heads", **dtypes)
        self.out = Dense(width, c.d_model, ("heads", "embed"), use_bias=False, **c.dtypes)

    def __call__(self, x_BLD: jax.Array, mask_BL: jax.Array) -> jax.Array:
        # Without the mask: padding follows every real token, so it is never read.
        previous_BLD = jnp.pad(x_BLD, ((0, 0), (1, 0), (0, 0)))[:, :-1]
        inputs, gate_BLE = self._project(x_BLD, previous_BLD)
        return self._gated(channel_decay_scan(*inputs, self.config.chunk), gate_BLE)

    def init_state(self, batch: int, max_length: int) -> RecurrentState:
        """The last token, and S."""
        c = self.context
        matrix = jnp.zeros((batch, c.num_heads, c.head_dim, c.head_dim), jnp.float32)
        return RecurrentState(jnp.zeros((batch, c.d_model), c.dtype), matrix)

    def step(
        self, x_BD: jax.Array, state: RecurrentState, position: jax.Array
    ) -> tuple[jax.Array, RecurrentState]:
        """One step of the recurrence."""
        (r, k, v, log_decay, own_weight), gate_BE = self._project(x_BD, state.recent)
        y_BHK, matrix = channel_decay_step(r, k, v, log_decay, own_weight, state.hidden)
        token = x_BD.astype(state.recent.dtype)
        return self._gated(y_BHK, gate_BE), RecurrentState(token, matrix)

    def _project(
        self, x: jax.Array, previous: jax.Array
    ) -> tuple[tuple[jax.Array, ...], jax.Array]:
        """(r, k, v, log w [..., H, K], own weight [..., H]) and the gate [..., H * K]."""
        change = previous - x
        guide = (x + change * jax.lax.broadcast_to_rank(self.blend, x.ndim)).astype(x.dtype)

        def blended(lerp: LowRank) -> jax.Array:
            return (x + change * lerp(guide)).astype(x.dtype)

        def heads(x: jax.Array) -> jax.Array:
            c = self.context
            return x.astype(jnp.float32).reshape(*x.shape[:-1], c.num_heads, c.head_dim)

        def projected(project: Dense, lerp: LowRank) -> jax.Array:
            return project.split(blended(lerp), self.context.num_heads).astype(jnp.float32)

        r = projected(self.receptance, self.lerp_receptance)
        k = projected(self.key, self.lerp_key)
        v = projected(self.value, self.lerp_value)
        strength = heads(self.decay(blended(self.lerp_decay)))
        log_decay = -jnp.exp(jnp.minimum(strength, _STRONGEST))
        bonus = jax.lax.broadcast_to_rank(heads(self.bonus), r.ndim)
        own_weight = (r * bonus * k).sum(axis=-1)
        return (r, k, v, log_decay, own_weight), self.gate(blended(self.lerp_gate))

    def _gated(self, y: jax.Array, gate: jax.Array) -> jax.Array:
        y = self.norm(y.reshape(*y.shape[:-2], -1))
        return self.out(y * nn.silu(gate))
