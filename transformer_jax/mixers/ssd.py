"""Mamba-2: state space duality (Dao and Gu 2024, arXiv:2405.21060).

    x, B, C = silu(conv(W_xBC u)),   z = W_z u,   dt = softplus(W_dt u + b)
    S_t = exp(dt_t A) S_{t-1} + B_t (dt_t x_t)^T,    s_t = S_t^T C_t + skip x_t
    y = W_o norm(s * silu(z))

Mamba with one decay a head instead of one a channel and state entry. The same map is a
masked product (C B^T * decays) x, like attention without softmax, and runs as matrix
products in chunks: O(L) in time. A decoding step is O(1) and keeps a matrix a head.

It reads forwards only; the encoder runs it in both directions (`both_ways`), or with
combine=one_pass once: its masked product then has the decays between two tokens on both sides of
the diagonal (Afzal et al. 2025, arXiv:2502.16249), and the convolution is centered. The state must
hold everything about the past, so it cannot look up an arbitrary earlier token exactly.
"""

from dataclasses import dataclass
from functools import partial
from typing import ClassVar, Literal

import jax
import jax.numpy as jnp
from flax import linen as nn
from jax import Array
from pydantic import PositiveInt

from transformer_jax.errors import UserError
from transformer_jax.layers.initializers import log_of_uniform, softplus_inverse
from transformer_jax.layers.short_convolution import ShortConvolution
from transformer_jax.mixers.base import Mixer, MixerContext, State
from transformer_jax.mixers.both_ways import BothWaysConfig, RecurrentState
from transformer_jax.ops.scans import scalar_decay_scan, scalar_decay_step
from transformer_jax.positions.base import Position


class SSDMixer(Mixer):
    """The causal mixer or that of one pass, without position hooks or attention weights."""

    config: "SSD"

    def setup(self) -> None:
        c, o = self.context, self.config
        inner, self.head_dim = o.expand * c.d_model, o.head_dim or c.head_dim
        self.num_heads = inner // self.head_dim
        mixed = inner + 2 * o.groups * o.state_size
        self.into = c.linear(c.d_model, mixed, ("embed", "mlp"))
        self.gate = c.linear(c.d_model, inner, ("embed", "mlp"))
        self.delta = c.linear(c.d_model, self.num_heads, ("embed", "heads"))
        self.conv = ShortConvolution(mixed, o.conv_width, c.dtype, c.param_dtype)
        heads, axes = (self.num_heads,), ("heads",)
        steps = partial(softplus_inverse, 1e-3, 1e-1)
        self.delta_bias = self.weight("delta_bias", steps, heads, axes)
        self.log_decay = self.weight("log_decay", partial(log_of_uniform, 1.0, 16.0), heads, axes)
        self.skip = self.weight("skip", nn.initializers.ones, heads, axes)
        per_group = {"groups": o.groups, "axis": "mlp", "center": False, "use_bias": False}
        self.norm = c.norm(inner, 1e-5, **per_group)
        self.out = c.linear(inner, c.d_model, ("mlp", "embed"))

    def __call__(self, x_BLD: Array, mask_BL: Array) -> Array:
        mixed_BLE, (dt_BLH, log_decay_BLH) = self.into(x_BLD), self._steps(x_BLD)
        if self.context.causal:
            # Without the mask: padding follows every real token, so it is never read.
            mixed_BLE = self.conv(mixed_BLE)
        else:
            mixed_BLE = self.conv.centered(mixed_BLE, mask_BL)
            dt_BLH = jnp.where(mask_BL[..., None], dt_BLH, 0)
            log_decay_BLH = jnp.where(mask_BL[..., None], log_decay_BLH, 0)
        x_BLHK, b_BLGN, c_BLGN = self._split(nn.silu(mixed_BLE))
        inputs = c_BLGN, b_BLGN, dt_BLH[..., None] * x_BLHK, log_decay_BLH
        both_ways = not self.context.causal
        y_BLHK = scalar_decay_scan(inputs, self.config.chunk, both_ways=both_ways)
        return self._gated(y_BLHK, x_BLHK, self.gate(x_BLD))

    def init_state(self, batch: int, max_length: int) -> RecurrentState:
        """The convolution's last inputs, and S [B, H, N, K]."""
        shape = (batch, self.num_heads, self.config.state_size, self.head_dim)
        return RecurrentState(self.conv.init_window(batch), jnp.zeros(shape, jnp.float32))

    def step(self, x_BD: Array, state: RecurrentState, position: Array) -> tuple[Array, State]:
        """One step of the recurrence."""
        mixed_BE, window = self.conv.step(self.into(x_BD), state.recent)
        x_BHK, b_BGN, c_BGN = self._split(nn.silu(mixed_BE))
        dt_BH, log_decay_BH = self._steps(x_BD)
        inputs = c_BGN, b_BGN, dt_BH[..., None] * x_BHK, log_decay_BH
        y_BHK, matrix = scalar_decay_step(inputs, state.hidden)
        y_BD = self._gated(y_BHK, x_BHK, self.gate(x_BD))
        return y_BD, RecurrentState(window, matrix)

    def _split(self, mixed: Array) -> tuple[Array, Array, Array]:
        """[..., E + 2 G N] -> x [..., H, K], B and C [..., G, N]."""
        o, inner = self.config, self.num_heads * self.head_dim
        lead = mixed.shape[:-1]
        x = mixed[..., :inner].reshape(*lead, self.num_heads, self.head_dim)
        b, c = jnp.split(mixed[..., inner:], 2, axis=-1)
        shape = (*lead, o.groups, o.state_size)
        return x, b.reshape(shape), c.reshape(shape)

    def _steps(self, x: Array) -> tuple[Array, Array]:
        """Step sizes and logarithms of the decays, [..., H] float32."""
        bias = jax.lax.broadcast_to_rank(self.delta_bias, x.ndim)
        log_decay = jax.lax.broadcast_to_rank(self.log_decay, x.ndim)
        dt = nn.softplus(self.delta(x).astype(jnp.float32) + bias)
        return dt, -jnp.exp(log_decay.astype(jnp.float32)) * dt

    def _gated(self, y: Array, x: Array, gate: Array) -> Array:
        skip = jax.lax.broadcast_to_rank(self.skip[:, None], x.ndim)
        y = y + skip * x.astype(jnp.float32)
        y = y.reshape(*y.shape[:-2], -1) * nn.silu(gate.astype(jnp.float32))
        return self.out(self.norm(y))


@dataclass(frozen=True)
class SSD(BothWaysConfig):
    """Mamba-2's sizes."""

    module: ClassVar[type[Mixer]] = SSDMixer

    combine: Literal["sum", "concat", "one_pass"] = "sum"  # type: ignore[assignment]
    #: encoder only; concat: side by side, projected; one_pass: one set of weights reads both ways
    expand: PositiveInt = 2  #: inner channels as a multiple of d_model
    head_dim: PositiveInt | None = None  #: channels that share a decay; None = the model's head_dim
    state_size: PositiveInt = 64  #: N, rows of each head's state
    groups: PositiveInt = 1  #: sets of B and C, each shared by as many heads
    conv_width: PositiveInt = 4  #: taps of the convolution
    chunk: PositiveInt = 64
    #: positions handled by one matrix product; on a GPU or TPU at least 128

    def check(self, context: MixerContext, hooks: frozenset[str]) -> None:
        super().check(context, hooks)
        if self.combine == "one_pass":
            self.refuse_unused("share_weights", "combine=one_pass has one set of weights")
        inner, head_dim = self.expand * context.d_model, self.head_dim or context.head_dim
        if inner % head_dim or inner // head_dim % self.groups:
            raise UserError(
                f"head_dim={head_dim} and groups={self.groups}: expand * d_model = {inner} "
                "channels are split into heads of head_dim, and those into groups; choose a "
                f"divisor of {inner}, and of the number of heads"
            )

    def build(self, context: MixerContext, position: Position) -> Mixer:
        build = self.build_causal if self.combine == "one_pass" else super().build
        return build(context, position)
