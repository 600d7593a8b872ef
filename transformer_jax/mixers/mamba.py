"""Mamba, the selective state space model (Gu and Dao 2023, arXiv:2312.00752).

    x, z = W_x u, W_z u                        E = expand * D channels each
    x = silu(conv(x))                          causal, a few taps a channel
    delta, B, C = softplus(W_dt W_r x + b), W_B x, W_C x
    h_t = exp(delta_t A) h_{t-1} + delta_t B_t x_t,   s_t = C_t h_t + skip x_t
    y = W_o (s * silu(z))

The step size delta, the input map B and the output map C depend on the token, so the
state keeps or forgets by content. O(L) in time; a decoding step is O(1) and keeps the
last inputs of the convolution and a state of E x N numbers.

It reads forwards only; the encoder runs it in both directions (`both_ways`). The state must
hold everything about the past, so it cannot look up an arbitrary earlier token exactly.
"""

from dataclasses import dataclass
from functools import partial
from typing import ClassVar

import jax
import jax.numpy as jnp
from flax import linen as nn
from jax import Array
from pydantic import PositiveInt

from transformer_jax.layers.initializers import (
    along_last_axis,
    softplus_inverse,
    torch_uniform,
)
from transformer_jax.layers.short_convolution import ShortConvolution
from transformer_jax.mixers.base import Mixer, State
from transformer_jax.mixers.both_ways import BothWaysConfig, RecurrentState
from transformer_jax.ops.scans import Inputs
from transformer_jax.ops.selective_scan import selective_scan, selective_step


class MambaMixer(Mixer):
    """The causal mixer, without position hooks or attention weights."""

    config: "Mamba"

    def setup(self) -> None:
        c, o = self.context, self.config
        inner, self.rank = o.expand * c.d_model, o.dt_rank or -(-c.d_model // 16)
        self.into = c.linear(c.d_model, inner, ("embed", "mlp"))
        self.gate = c.linear(c.d_model, inner, ("embed", "mlp"))
        self.conv = ShortConvolution(inner, o.conv_width, c.dtype, c.param_dtype)
        self.select = c.linear(inner, self.rank + 2 * o.state_size, ("mlp", "rank"))
        self.delta = c.linear(self.rank, inner, ("rank", "mlp"), kernel_init=torch_uniform)
        steps = partial(softplus_inverse, 1e-3, 1e-1)
        self.delta_bias = self.weight("delta_bias", steps, (inner,), ("mlp",))
        # -A_n = 1 ... N, the real part of S4D's initial values.
        decays = partial(along_last_axis, lambda n: jnp.log(n + 1.0))
        self.log_decay = self.weight("log_decay", decays, (inner, o.state_size), ("mlp", "state"))
        self.skip = self.weight("skip", nn.initializers.ones, (inner,), ("mlp",))
        self.out = c.linear(inner, c.d_model, ("mlp", "embed"))

    def __call__(self, x_BLD: Array, mask_BL: Array) -> Array:
        # Without the mask: padding follows every real token, so it is never read.
        x_BLE = nn.silu(self.conv(self.into(x_BLD)))
        y_BLE = selective_scan(self._selected(x_BLE), self.config.chunk)
        return self._gated(y_BLE, x_BLE, self.gate(x_BLD))

    def init_state(self, batch: int, max_length: int) -> RecurrentState:
        """The convolution's last inputs, and the scan's state [B, E, N]."""
        o, inner = self.config, self.config.expand * self.context.d_model
        hidden = jnp.zeros((batch, inner, o.state_size), jnp.float32)
        return RecurrentState(self.conv.init_window(batch), hidden)

    def step(self, x_BD: Array, state: RecurrentState, position: Array) -> tuple[Array, State]:
        """One step of the recurrence."""
        x_BE, window = self.conv.step(self.into(x_BD), state.recent)
        x_BE = nn.silu(x_BE)
        y_BE, hidden = selective_step(self._selected(x_BE), state.hidden)
        return self._gated(y_BE, x_BE, self.gate(x_BD)), RecurrentState(window, hidden)

    def _selected(self, x: Array) -> Inputs:
        """x and delta [..., E], A [E, N], B and C [..., N]."""
        n = self.config.state_size
        low = self.select(x)
        delta = self.delta(low[..., : self.rank]).astype(jnp.float32)
        delta = delta + jax.lax.broadcast_to_rank(self.delta_bias, x.ndim)
        a_EN = -jnp.exp(self.log_decay.astype(jnp.float32))
        return x, nn.softplus(delta), a_EN, low[..., self.rank : -n], low[..., -n:]

    def _gated(self, y: Array, x: Array, gate: Array) -> Array:
        y = y + jax.lax.broadcast_to_rank(self.skip, x.ndim) * x.astype(jnp.float32)
        return self.out((y * nn.silu(gate.astype(jnp.float32))).astype(x.dtype))


@dataclass(frozen=True)
class Mamba(BothWaysConfig):
    """Mamba's sizes."""

    module: ClassVar[type[Mixer]] = MambaMixer

    expand: PositiveInt = 2  #: inner channels E as a multiple of d_model
    state_size: PositiveInt = 16  #: N, the state of each channel
    conv_width: PositiveInt = 4  #: taps of the convolution
    dt_rank: PositiveInt | None = None
    #: rank of the map to the step sizes; None = d_model / 16, rounded up
    chunk: PositiveInt = 16
    #: positions whose states exist at one time; on a GPU or TPU so many that they are 256 tokens
