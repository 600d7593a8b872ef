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
from typing import ClassVar, Literal

import jax
import jax.numpy as jnp
from flax import linen as nn
from pydantic import NonNegativeInt, PositiveInt

from transformer_jax.layers.initializers import log_uniform_of, softplus_inverse_of_log_uniform
from transformer_jax.layers.norms import Norm, normalize
from transformer_jax.layers.projections import Dense
from transformer_jax.layers.short_convolution import ShortConvolution
from transformer_jax.mixers.base import Mixer, MixerContext
from transformer_jax.mixers.both_ways import BothWaysConfig, RecurrentState
from transformer_jax.ops.delta_rule import DeltaRuleInputs, delta_rule_scan, delta_rule_step
from transformer_jax.positions.base import Position
from transformer_jax.settings.types import PowerOfTwo


@dataclass(frozen=True)
class GatedDeltaNet(BothWaysConfig):
    """Gated DeltaNet's forms and sizes."""

    knows_order: ClassVar[bool] = True

    decay: Literal["none", "head", "channel"] = "head"
    #: what of the state decays at a rate of its own
    strength: Literal["joint", "apart"] = "joint"
    #: joint: one number a head says how much is erased and written; apart: by channel, for each
    gate: Literal["silu", "sigmoid"] = "silu"  #: of the output
    expand: PositiveInt = 1  #: width of the values as a multiple of the keys'
    conv_width: NonNegativeInt = 4  #: taps of the convolution on q, k and v; 0 = none
    decay_rank: PositiveInt | None = None
    #: rank of the map to the decays of channels; None = head_dim
    chunk: PowerOfTwo = 64  #: positions handled by one matrix product; a power of two

    def check(self, context: MixerContext, hooks: frozenset[str]) -> None:
        super().check(context, hooks)
        if self.decay != "channel":
            self.refuse_unused("decay_rank", "it is of the decays of channels; set decay=channel")

    def build_causal(self, context: MixerContext, position: Position) -> Mixer:
        return GatedDeltaNetMixer(self, context, position)


class GatedDeltaNetMixer(Mixer):
    """The causal mixer, without position hooks or attention weights."""

    config: GatedDeltaNet

    def setup(self) -> None:
        c, o = self.context, self.config
        width = c.num_heads * c.head_dim
        self.value_width = o.expand * width
        bare = {"use_bias": False, **c.dtypes}
        dtypes = {"dtype": c.dtype, "param_dtype": c.param_dtype}

        def to_heads(features: int) -> Dense:
            return Dense(c.d_model, features, ("embed", "heads"), **bare)

        mixed = 2 * width + self.value_width
        self.into = Dense(c.d_model, mixed, ("embed", "mlp"), **bare)
        self.conv = ShortConvolution(mixed, o.conv_width, **dtypes)
        if o.strength == "apart":
            self.erase, self.write = to_heads(width), to_heads(self.value_width)
        else:
            self.strength = to_heads(c.num_heads)
        if o.decay != "none":
            is_head = o.decay == "head"
            rates, rank = c.num_heads if is_head else width, o.decay_rank or c.head_dim
            if not is_head:
                self.delta_low = Dense(c.d_model, rank, ("embed", "rank"), **bare)
            inputs, axis = (c.d_model, "embed") if is_head else (rank, "rank")
            self.delta = Dense(inputs, rates, (axis, "heads"), **bare)
            steps = softplus_inverse_of_log_uniform(1e-3, 1e-1)
            self.delta_bias = self.weight("delta_bias", steps, (rates,), ("heads",))
            log_decay = log_uniform_of(1.0, 16.0)
            self.log_decay = self.weight("log_decay", log_decay, (c.num_heads,), ("heads",))
        self.gate = to_heads(self.value_width)
        self.norm = Norm(
            self.value_width,
            1e-6,
            center=False,
            use_bias=False,
            groups=c.num_heads,
            axis="heads",
            **dtypes,
        )
        self.out = Dense(self.value_width, c.d_model, ("heads", "embed"), **bare)

    def __call__(self, x_BLD: jax.Array, mask_BL: jax.Array) -> jax.Array:
        q, k, v, e, log_decay = self._parts(x_BLD, self.conv(self.into(x_BLD)))
        # Padding erases and writes nothing, and nothing decays there.
        v, e, log_decay = (
            jnp.where(jax.lax.expand_dims(mask_BL, range(2, a.ndim)), a, 0)
            for a in (v, e, log_decay)
        )
        y_BLHV, _ = delta_rule_scan(q, k, v, e, log_decay, self.config.chunk)
        return self._gated(y_BLHV, x_BLD)

    def init_state(self, batch: int, max_length: int) -> RecurrentState:
        """The convolution's last inputs, and S [B, H, K, V]."""
        c = self.context
        shape = (batch, c.num_heads, c.head_dim, self.config.expand * c.head_dim)
        return RecurrentState(self.conv.init_window(batch), jnp.zeros(shape, jnp.float32))

    def step(
        self, x_BD: jax.Array, state: RecurrentState, position: jax.Array
    ) -> tuple[jax.Array, RecurrentState]:
        """One step of the recurrence."""
        mixed_BE, window = self.conv.step(self.into(x_BD), state.recent)
        y_BHV, matrix = delta_rule_step(*self._parts(x_BD, mixed_BE), state.hidden)
        return self._gated(y_BHV, x_BD), RecurrentState(window, matrix)

    def _parts(self, x: jax.Array, mixed: jax.Array) -> DeltaRuleInputs:
        """(q, k, v, e and log w) of `ops.delta_rule`, [..., H, K or V] or [..., H], float32."""
        c = self.context
        width = c.num_heads * c.head_dim

        def heads(x: jax.Array) -> jax.Array:
            return x.astype(jnp.float32).reshape(*x.shape[:-1], c.num_heads, -1)

        mixed = nn.silu(mixed.astype(jnp.float32))
        q, k, v = (heads(part) for part in jnp.split(mixed, [width, 2 * width], axis=-1))
        # The mean square of a vector of length 1 is 1 / K; its scores are then divided by sqrt(K).
        q, k = (normalize(a, epsilon=1e-6 / c.head_dim, center=False) for a in (q, k))
        q, k = q / c.head_dim, k * c.head_dim**-0.5
        if self.config.strength == "apart":
            erased, written = nn.sigmoid(heads(self.erase(x))), nn.sigmoid(heads(self.write(x)))
        else:
            erased = written = nn.sigmoid(heads(self.strength(x)))
        return q, k, v * written, k * erased, self._log_decay(x)

    def _log_decay(self, x: jax.Array) -> jax.Array:
        """[..., H], or [..., H, K] where every channel has its own."""
        heads = (*x.shape[:-1], self.context.num_heads)
        if self.config.decay == "none":
            return jnp.zeros(heads, jnp.float32)
        delta = self.delta(self.delta_low(x) if self.config.decay == "channel" else x)
        bias = jax.lax.broadcast_to_rank(self.delta_bias, x.ndim)
        steps = nn.softplus(delta.astype(jnp.float32) + bias).reshape(*heads, -1)
        rates = -jnp.exp(self.log_decay.astype(jnp.float32))[:, None]
        log_decay = jax.lax.broadcast_to_rank(rates, steps.ndim) * steps
        return log_decay if self.config.decay == "channel" else log_decay[..., 0]

    def _gated(self, y: jax.Array, x: jax.Array) -> jax.Array:
        gate = getattr(nn, self.config.gate)(self.gate(x).astype(jnp.float32))
        y = self.norm(y.reshape(*y.shape[:-2], -1))
        return self.out((y * gate).astype(x.dtype))
