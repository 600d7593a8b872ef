"""Mamba, the selective state space model (Gu and Dao 2023, arXiv:2312.00752).

    x, z = W_x u, W_z u                        E = expand * D channels each
    x = silu(conv(x))                          causal, a few taps a channel
    delta, B, C = softplus(W_dt W_r x + b), W_B x, W_C x
    h_t = exp(delta_t A) h_{t-1} + delta_t B_t x_t,   s_t = C_t h_t + skip x_t
    y = W_o (s * silu(z))

The step size delta, the input map B and the output map C depend on the token, so the
state keeps or forgets by content. O(L) in time; a decoding step is O(1) and keeps the
last inputs of the convolution and a state of E x N numbers.

It reads forwards only: in the encoder it runs both ways (`both_ways`). Everything about
the past must fit the state, so it cannot look up an arbitrary earlier token exactly.
"""

from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
from flax import linen as nn
from flax import struct

from transformer_jax.layers.initializers import (
    along_last_axis,
    softplus_inverse_of_log_uniform,
    torch_uniform,
)
from transformer_jax.layers.projections import Dense
from transformer_jax.layers.short_convolution import ShortConvolution
from transformer_jax.mixers.base import Mixer, MixerContext
from transformer_jax.mixers.both_ways import BothWaysOptions
from transformer_jax.mixers.checks import refuse_weight_dropout, require
from transformer_jax.ops.selective_scan import selective_scan, selective_step


@dataclass(frozen=True)
class MambaOptions(BothWaysOptions):
    """Mamba's sizes."""

    expand: int = 2  #: inner channels E as a multiple of d_model
    state_size: int = 16  #: N, the state of each channel
    conv_width: int = 4  #: taps of the convolution
    dt_rank: int = 0  #: rank of the map to the step sizes; 0 = d_model / 16, rounded up
    chunk: int = 16  #: positions whose states exist at one time; memory against parallelism


@struct.dataclass
class MambaState:
    """The convolution's last inputs [B, W - 1, E] and the scan's state [B, E, N]."""

    window: jax.Array
    hidden: jax.Array


class Mamba(Mixer):
    """The causal mixer, without position hooks or attention weights."""

    Options = MambaOptions
    knows_order = True

    @classmethod
    def check(cls, context: MixerContext, options: Any, *, hooks: frozenset[str], key: str) -> None:
        """See `Mixer`."""
        del hooks
        refuse_weight_dropout(context, key)
        require(options, key, expand=1, state_size=1, conv_width=1, dt_rank=0, chunk=1)

    def setup(self) -> None:
        c, o = self.context, self.options
        inner, self.rank = o.expand * c.d_model, o.dt_rank or -(-c.d_model // 16)
        named, dtype = nn.with_logical_partitioning, c.dtypes["param_dtype"]
        self.into = Dense(c.d_model, inner, ("embed", "mlp"), use_bias=False, **c.dtypes)
        self.gate = Dense(c.d_model, inner, ("embed", "mlp"), use_bias=False, **c.dtypes)
        self.conv = ShortConvolution(
            inner, o.conv_width, c.dtypes["dtype"], c.dtypes["param_dtype"]
        )
        self.select = Dense(
            inner, self.rank + 2 * o.state_size, ("mlp", "rank"), use_bias=False, **c.dtypes
        )
        self.delta = Dense(
            self.rank,
            inner,
            ("rank", "mlp"),
            use_bias=False,
            kernel_init=torch_uniform,
            **c.dtypes,
        )
        self.delta_bias = self.param(
            "delta_bias",
            named(softplus_inverse_of_log_uniform(1e-3, 1e-1), ("mlp",)),
            (inner,),
            dtype,
        )
        # -A_n = 1 ... N, the real part of S4D's initial values.
        self.log_decay = self.param(
            "log_decay",
            named(along_last_axis(lambda n: jnp.log(n + 1.0)), ("mlp", "state")),
            (inner, o.state_size),
            dtype,
        )
        self.skip = self.param(
            "skip", named(nn.initializers.ones_init(), ("mlp",)), (inner,), dtype
        )
        self.out = Dense(inner, c.d_model, ("mlp", "embed"), use_bias=False, **c.dtypes)

    def __call__(self, x_BLD: jax.Array, mask_BL: jax.Array) -> jax.Array:
        """See `Mixer`."""
        del mask_BL  # padding follows every real token: none of it is read
        x_BLE = nn.silu(self.conv(self.into(x_BLD)))
        y_BLE, _ = selective_scan(x_BLE, *self._selected(x_BLE), self.options.chunk)
        return self._gated(y_BLE, x_BLE, self.gate(x_BLD))

    def init_state(self, batch: int, max_length: int) -> MambaState:
        """An empty past; the same size whatever `max_length`."""
        del max_length
        o, inner = self.options, self.options.expand * self.context.d_model
        hidden = jnp.zeros((batch, inner, o.state_size), jnp.float32)
        return MambaState(window=self.conv.init_window(batch), hidden=hidden)

    def step(
        self, x_BD: jax.Array, state: MambaState, position: jax.Array
    ) -> tuple[jax.Array, MambaState]:
        """One turn of the recurrence."""
        del position
        x_BE, window = self.conv.step(self.into(x_BD), state.window)
        x_BE = nn.silu(x_BE)
        y_BE, hidden = selective_step(x_BE, *self._selected(x_BE), state.hidden)
        return self._gated(y_BE, x_BE, self.gate(x_BD)), MambaState(window=window, hidden=hidden)

    def _selected(self, x: jax.Array) -> tuple[jax.Array, jax.Array, jax.Array, jax.Array]:
        """delta [..., E], A [E, N], B and C [..., N], in float32."""
        n = self.options.state_size
        low = self.select(x)
        delta = self.delta(low[..., : self.rank]).astype(jnp.float32) + self.delta_bias
        a_EN = -jnp.exp(self.log_decay.astype(jnp.float32))
        return nn.softplus(delta), a_EN, low[..., self.rank : -n], low[..., -n:]

    def _gated(self, y: jax.Array, x: jax.Array, gate: jax.Array) -> jax.Array:
        y = y + self.skip * x.astype(jnp.float32)
        return self.out((y * nn.silu(gate.astype(jnp.float32))).astype(x.dtype))
