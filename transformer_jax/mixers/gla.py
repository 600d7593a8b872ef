"""Gated linear attention (Yang, Wang, Shen, Panda and Kim 2023, arXiv:2312.06635).

    q, k, v = W_qkv x                    with a convolution, q, k, v = silu(conv(W_qkv x))
    S_t = diag(w_t) S_{t-1} + k_t v_t^T,    y_t = S_t^T q_t / sqrt(K)
    out = W_o (norm_per_head(y) * silu(W_g x))

`decay` chooses w: channel is the paper's, w = sigmoid(-W_2 W_1 x - d)^r, where r is learned and
begins at 1/16; head is one such number a head; fixed is w = 1 - 2^(-5 - h) in head h, the
retention of RetNet (Sun et al. 2023, arXiv:2307.08621), which also rotates q and k (position=rope);
none is linear attention without its normaliser.

O(L) time, in chunks (`ops.scans`); a decoding step is O(1) and keeps a matrix a head. It reads
forwards only; the encoder runs it in both directions (`both_ways`). The state must hold
everything about the past, so it cannot look up an arbitrary earlier token exactly.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import jax
import jax.numpy as jnp
from flax import linen as nn
from jax import Array
from pydantic import NonNegativeInt, PositiveInt

from transformer_jax.layers.initializers import Initializer
from transformer_jax.layers.short_convolution import ShortConvolution
from transformer_jax.mixers.base import Mixer, MixerContext, State
from transformer_jax.mixers.both_ways import BothWaysConfig, RecurrentState
from transformer_jax.ops.scans import decayed_scan, decayed_step
from transformer_jax.settings.types import PowerOfTwo


class GLAMixer(Mixer):
    """The causal mixer, without attention weights.

    A subclass has another recurrence, with more inputs: `_scan` of a sequence takes those of
    `_parts` and the chunk, `_step` of a token those and the state.
    """

    config: "GLA"
    _scan: ClassVar[Callable[..., Any]] = staticmethod(decayed_scan)
    _step: ClassVar[Callable[..., Any]] = staticmethod(decayed_step)

    def setup(self) -> None:
        c, o = self.context, self.config
        width = c.num_heads * c.head_dim
        value_width, mixed = o.expand * width, (2 + o.expand) * width
        self.into = c.linear(c.d_model, mixed, ("embed", "mlp"))
        self.conv = ShortConvolution(mixed, o.conv_width, c.dtype, c.param_dtype)
        if o.decay in ("head", "channel"):
            inputs, rates, axis = c.d_model, c.num_heads, "embed"
            if o.decay == "channel":
                inputs, rates, axis = o.decay_rank or c.head_dim, width, "rank"
                self.delta_low = c.linear(c.d_model, inputs, ("embed", "rank"))
            self.delta = c.linear(inputs, rates, (axis, "heads"))
            bias, rate = self._initial_decays()
            self.delta_bias = self.weight("delta_bias", bias, (rates,), ("heads",))
            self.log_decay = self.weight("log_decay", rate, (c.num_heads,), ("heads",))
        self.gate = c.linear(c.d_model, value_width, ("embed", "heads"))
        per_head = {"groups": c.num_heads, "axis": "heads", "center": False, "use_bias": False}
        self.norm = c.norm(value_width, 1e-6, **per_head)
        self.out = c.linear(value_width, c.d_model, ("heads", "embed"))

    def _initial_decays(self) -> tuple[Initializer, Initializer]:
        """Of d, and of the logarithm of r."""
        return nn.initializers.zeros, nn.initializers.constant(jnp.log(1 / 16))

    def __call__(self, x_BLD: Array, mask_BL: Array) -> Array:
        mixed_BLE = self.conv(self.into(x_BLD))
        q, k, *written = self._parts(x_BLD, mixed_BLE, jnp.arange(x_BLD.shape[1]))
        # Padding writes nothing, and nothing decays there.
        masks = (jax.lax.expand_dims(mask_BL, range(2, a.ndim)) for a in written)
        written = [jnp.where(mask, a, 0) for mask, a in zip(masks, written, strict=True)]
        return self._gated(self._scan((q, k, *written), self.config.chunk), x_BLD)

    def init_state(self, batch: int, max_length: int) -> RecurrentState:
        """The convolution's last inputs, and S [B, H, K, V]."""
        c = self.context
        shape = (batch, c.num_heads, c.head_dim, self.config.expand * c.head_dim)
        return RecurrentState(self.conv.init_window(batch), jnp.zeros(shape, jnp.float32))

    def step(self, x_BD: Array, state: RecurrentState, position: Array) -> tuple[Array, State]:
        """One step of the recurrence."""
        mixed_BE, window = self.conv.step(self.into(x_BD), state.recent)
        parts = self._parts(x_BD[:, None], mixed_BE[:, None], position[None])
        y_BHV, matrix = self._step(tuple(part[:, 0] for part in parts), state.hidden)
        return self._gated(y_BHV, x_BD), RecurrentState(window, matrix)

    def _parts(self, x_BLD: Array, mixed_BLE: Array, at_L: Array) -> tuple[Array, ...]:
        """q, k, v and log w: [B, L, H, K or V], log w perhaps [B, L, H]; float32."""
        mixed_BLE = mixed_BLE.astype(jnp.float32)
        q, k, v = self._split(nn.silu(mixed_BLE) if self.config.conv_width else mixed_BLE)
        q, k = self.position.rotate(q, k, at_L, at_L)
        return q * self.context.head_dim**-0.5, k, v, self._log_decay(x_BLD)

    def _split(self, mixed: Array) -> tuple[Array, ...]:
        width = self.context.num_heads * self.context.head_dim
        return tuple(map(self.in_heads, jnp.split(mixed, [width, 2 * width], axis=-1)))

    def _log_decay(self, x_BLD: Array) -> Array:
        """[B, L, H], or [B, L, H, K] where every channel has its own."""
        heads = (*x_BLD.shape[:-1], self.context.num_heads)
        if self.config.decay == "none":
            return jnp.zeros(heads, jnp.float32)
        if self.config.decay == "fixed":
            fixed_H = jnp.log1p(-(2.0 ** (-5.0 - jnp.arange(heads[-1]))))
            return jnp.broadcast_to(fixed_H, heads)
        is_channel = self.config.decay == "channel"
        delta = self.delta(self.delta_low(x_BLD) if is_channel else x_BLD)
        bias = self.delta_bias[None, None]
        steps = self.in_heads(nn.softplus(delta.astype(jnp.float32) + bias))
        rates_H1 = -jnp.exp(self.log_decay.astype(jnp.float32))[:, None]
        log_decay = rates_H1[None, None] * steps
        return log_decay if is_channel else log_decay[..., 0]

    def _gated(self, y: Array, x: Array) -> Array:
        gate = getattr(nn, self.config.gate)(self.gate(x).astype(jnp.float32))
        y = self.norm(y.reshape(*y.shape[:-2], -1))
        return self.out((y * gate).astype(x.dtype))


@dataclass(frozen=True)
class GLA(BothWaysConfig):
    """Forms and sizes of gated linear attention."""

    module: ClassVar[type[Mixer]] = GLAMixer
    honours: ClassVar[frozenset[str]] = frozenset({"rotate"})

    decay: Literal["none", "fixed", "head", "channel"] = "channel"
    #: what of the state has a rate of its own; fixed: by head, not learned
    gate: Literal["silu", "sigmoid"] = "silu"  #: of the output
    expand: PositiveInt = 1  #: width of the values as a multiple of the keys'
    conv_width: NonNegativeInt = 0  #: taps of the convolution on q, k and v; 0 = none
    decay_rank: PositiveInt | None = None
    #: rank of the map to the decays of channels; None = head_dim
    chunk: PowerOfTwo = 64  #: positions handled by one matrix product; a power of two

    def check(self, context: MixerContext, hooks: frozenset[str]) -> None:
        super().check(context, hooks)
        if self.decay != "channel":
            self.refuse_unused("decay_rank", "it is of the decays of channels; set decay=channel")
