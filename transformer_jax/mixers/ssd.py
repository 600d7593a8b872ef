"""Mamba-2: state space duality (Dao and Gu 2024, arXiv:2405.21060).

    x, B, C = silu(conv(W_xBC u)),   z = W_z u,   dt = softplus(W_dt u + b)
    S_t = exp(dt_t A) S_{t-1} + B_t (dt_t x_t)^T,    s_t = S_t^T C_t + skip x_t
    y = W_o norm(s * silu(z))

Mamba with one decay a head instead of one a channel and state entry. The same map is a
masked product (C B^T * decays) x, like attention without softmax, and runs as matrix
products in chunks: O(L) in time. A decoding step is O(1) and keeps a matrix a head.

It reads forwards only: in the encoder it runs both ways (`both_ways`). Everything about
the past must fit the state, so it cannot look up an arbitrary earlier token exactly.
"""

from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
from flax import linen as nn
from flax import struct

from transformer_jax.errors import UserError
from transformer_jax.layers.initializers import (
    log_uniform_of,
    softplus_inverse_of_log_uniform,
)
from transformer_jax.layers.norms import Norm
from transformer_jax.layers.projections import Dense
from transformer_jax.layers.short_convolution import ShortConvolution
from transformer_jax.mixers.base import Mixer, MixerContext
from transformer_jax.mixers.both_ways import BothWaysOptions
from transformer_jax.mixers.checks import refuse_weight_dropout, require
from transformer_jax.ops.scans import scalar_decay_scan, scalar_decay_step


@dataclass(frozen=True)
class SSDOptions(BothWaysOptions):
    """Mamba-2's sizes."""

    expand: int = 2  #: inner channels as a multiple of d_model
    head_dim: int = 0  #: channels that share a decay; 0 = the model's head_dim
    state_size: int = 64  #: N, rows of each head's state
    groups: int = 1  #: sets of B and C, each shared by as many heads
    conv_width: int = 4  #: taps of the convolution
    chunk: int = 64  #: positions handled by one matrix product


@struct.dataclass
class SSDState:
    """The convolution's last inputs [B, W - 1, E + 2 G N] and S [B, H, N, K], float32."""

    window: jax.Array
    matrix: jax.Array


class SSD(Mixer):
    """The causal mixer, without position hooks or attention weights."""

    Options = SSDOptions
    knows_order = True

    @classmethod
    def check(cls, context: MixerContext, options: Any, *, hooks: frozenset[str], key: str) -> None:
        """See `Mixer`."""
        del hooks
        refuse_weight_dropout(context, key)
        require(options, key, expand=1, head_dim=0, state_size=1, groups=1, conv_width=1, chunk=1)
        inner, head_dim = options.expand * context.d_model, options.head_dim or context.head_dim
        if inner % head_dim or inner // head_dim % options.groups:
            raise UserError(
                f"{key}.head_dim={head_dim} and {key}.groups={options.groups}: expand * d_model = "
                f"{inner} channels are split into heads of head_dim, and those into groups; "
                f"choose a divisor of {inner}, and of the number of heads"
            )

    def setup(self) -> None:
        c, o = self.context, self.options
        inner, self.head_dim = o.expand * c.d_model, o.head_dim or c.head_dim
        self.num_heads = inner // self.head_dim
        named, dtype = nn.with_logical_partitioning, c.dtypes["param_dtype"]
        mixed = inner + 2 * o.groups * o.state_size
        self.into = Dense(c.d_model, mixed, ("embed", "mlp"), use_bias=False, **c.dtypes)
        self.gate = Dense(c.d_model, inner, ("embed", "mlp"), use_bias=False, **c.dtypes)
        self.delta = Dense(
            c.d_model, self.num_heads, ("embed", "heads"), use_bias=False, **c.dtypes
        )
        self.conv = ShortConvolution(mixed, o.conv_width, c.dtypes["dtype"], dtype)
        heads = (self.num_heads,)
        self.delta_bias = self.param(
            "delta_bias",
            named(softplus_inverse_of_log_uniform(1e-3, 1e-1), ("heads",)),
            heads,
            dtype,
        )
        self.log_decay = self.param(
            "log_decay", named(log_uniform_of(1.0, 16.0), ("heads",)), heads, dtype
        )
        self.skip = self.param("skip", named(nn.initializers.ones_init(), ("heads",)), heads, dtype)
        self.norm = Norm(
            inner,
            epsilon=1e-5,
            center=False,
            use_bias=False,
            groups=o.groups,
            axis="mlp",
            dtype=c.dtypes["dtype"],
            param_dtype=dtype,
        )
        self.out = Dense(inner, c.d_model, ("mlp", "embed"), use_bias=False, **c.dtypes)

    def __call__(self, x_BLD: jax.Array, mask_BL: jax.Array) -> jax.Array:
        """See `Mixer`."""
        del mask_BL  # padding follows every real token: none of it is read
        x_BLHK, b_BLGN, c_BLGN = self._split(nn.silu(self.conv(self.into(x_BLD))))
        dt_BLH, log_decay_BLH = self._steps(x_BLD)
        y_BLHK, _ = scalar_decay_scan(
            c_BLGN, b_BLGN, dt_BLH[..., None] * x_BLHK, log_decay_BLH, self.options.chunk
        )
        return self._gated(y_BLHK, x_BLHK, self.gate(x_BLD))

    def init_state(self, batch: int, max_length: int) -> SSDState:
        """An empty past; the same size whatever `max_length`."""
        del max_length
        shape = (batch, self.num_heads, self.options.state_size, self.head_dim)
        return SSDState(window=self.conv.init_window(batch), matrix=jnp.zeros(shape, jnp.float32))

    def step(
        self, x_BD: jax.Array, state: SSDState, position: jax.Array
    ) -> tuple[jax.Array, SSDState]:
        """One turn of the recurrence."""
        del position
        mixed_BE, window = self.conv.step(self.into(x_BD), state.window)
        x_BHK, b_BGN, c_BGN = self._split(nn.silu(mixed_BE))
        dt_BH, log_decay_BH = self._steps(x_BD)
        y_BHK, matrix = scalar_decay_step(
            c_BGN, b_BGN, dt_BH[..., None] * x_BHK, log_decay_BH, state.matrix
        )
        y_BD = self._gated(y_BHK, x_BHK, self.gate(x_BD))
        return y_BD, SSDState(window=window, matrix=matrix)

    def _split(self, mixed: jax.Array) -> tuple[jax.Array, jax.Array, jax.Array]:
        """[..., E + 2 G N] -> x [..., H, K], B and C [..., G, N]."""
        o, inner = self.options, self.num_heads * self.head_dim
        lead = mixed.shape[:-1]
        x = mixed[..., :inner].reshape(*lead, self.num_heads, self.head_dim)
        b, c = jnp.split(mixed[..., inner:], 2, axis=-1)
        shape = (*lead, o.groups, o.state_size)
        return x, b.reshape(shape), c.reshape(shape)

    def _steps(self, x: jax.Array) -> tuple[jax.Array, jax.Array]:
        """Step sizes and logarithms of the decays, [..., H] float32."""
        dt = nn.softplus(self.delta(x).astype(jnp.float32) + self.delta_bias)
        return dt, -jnp.exp(self.log_decay.astype(jnp.float32)) * dt

    def _gated(self, y: jax.Array, x: jax.Array, gate: jax.Array) -> jax.Array:
        y = y + self.skip[:, None] * x.astype(jnp.float32)
        y = y.reshape(*y.shape[:-2], -1) * nn.silu(gate.astype(jnp.float32))
        return self.out(self.norm(y))
