"""H3, "hungry hungry hippos" (Fu et al. 2022, arXiv:2212.14052).

    q, k, v = W_q x, W_k x, W_v x               heads of P channels each
    k' = shift(k)                               a learned filter over the last tokens
    S_t = diagonal(k'_t v_t^T)                  [P, P] a head, one linear system a head
    y = W_o (S_t^T q_t)

Linear attention whose sums over the past are two state space models: the shift system
compares a key with the tokens right before it, and the diagonal one remembers the pair.
The products with v and q are its gates. O(L log L) time by FFT, with P arrays of
[B, L, D]; a decoding step is O(1) and keeps the last tokens and N/2 complex numbers for
each entry of S. The authors' models have P = 1 (HazyResearch/H3, src/models/ssm/h3.py).

It reads forwards only; the encoder runs it in both directions (`both_ways`). Unlike Mamba,
it does not choose by content what to keep. Beyond `direct_length` positions the FFT's
rounding (about 1e-7 of the largest term) also reaches earlier outputs; see
`ops.convolutions`.
"""

from dataclasses import dataclass
from functools import partial
from typing import ClassVar

import jax
import jax.numpy as jnp
from flax import linen as nn
from jax import Array
from pydantic import PositiveInt

from transformer_jax.errors import UserError
from transformer_jax.layers.diagonal_systems import DiagonalOptions, DiagonalSystems
from transformer_jax.layers.initializers import torch_uniform
from transformer_jax.layers.projections import Dense
from transformer_jax.mixers.base import Mixer, MixerContext, State
from transformer_jax.mixers.both_ways import BothWaysConfig, RecurrentState
from transformer_jax.ops.convolutions import long_convolution, short_convolution_step
from transformer_jax.ops.diagonal_ssm import empty_state


class H3Mixer(Mixer):
    """The causal mixer, without position hooks or attention weights."""

    config: "H3"

    def setup(self) -> None:
        c, o = self.context, self.config
        self.num_heads = c.d_model // o.head_dim
        # Not `Dense`'s own initial values: the output is a sum of products of three projections,
        # which would begin larger than what it is added to.
        small = {"kernel_init": torch_uniform} | c.dtypes
        into = partial(Dense, c.d_model, c.d_model, ("embed", "heads"), **small)
        self.query, self.key, self.value = into(), into(), into()
        # The shift system with B = e_1 is a filter whose taps are its output map C.
        taps = nn.initializers.normal(o.shift_size**-0.5)
        self.shift = self.weight("shift", taps, (o.shift_size, c.d_model), (None, "heads"))
        self.shift_skip = self.weight("shift_skip", nn.initializers.ones, (c.d_model,), ("heads",))
        self.systems = DiagonalSystems(self.num_heads, o, 1, "heads", c.param_dtype)
        self.skip = self.weight("skip", nn.initializers.ones, (self.num_heads,), ("heads",))
        self.out = Dense(c.d_model, c.d_model, ("heads", "embed"), **c.dtypes)

    def __call__(self, x_BLD: Array, mask_BL: Array) -> Array:
        real_BL1 = mask_BL[..., None]
        direct = self.config.direct_length
        k_BLD = jnp.where(real_BL1, self.key(x_BLD), 0)
        v_BLD = jnp.where(real_BL1, self.value(x_BLD), 0)
        shifted_BLD = long_convolution(k_BLD, self.shift, direct_length=direct)
        pairs = self._pairs(k_BLD, shifted_BLD, v_BLD)
        kernel_LH = self.systems.kernels(x_BLD.shape[1])[0]
        # The entries of a head's matrix become rows of the batch, because they share one filter.
        by_entry = jnp.moveaxis(pairs, 1, 3)  # [B, P, P, L, H]
        rows = by_entry.reshape(-1, *by_entry.shape[3:])
        y = long_convolution(rows, kernel_LH, direct_length=direct).reshape(by_entry.shape)
        return self._read(jnp.moveaxis(y, 3, 1), pairs, self.query(x_BLD))

    def init_state(self, batch: int, max_length: int) -> RecurrentState:
        """The last keys, and the systems' states [B, P, P, H, N/2]."""
        c, o = self.context, self.config
        shape = (batch, o.head_dim, o.head_dim, self.num_heads, o.state_size // 2)
        window = jnp.zeros((batch, o.shift_size - 1, c.d_model), jnp.float32)
        return RecurrentState(window, empty_state(shape))

    def step(self, x_BD: Array, state: RecurrentState, position: Array) -> tuple[Array, State]:
        """One step of both recurrences."""
        k_BD = self.key(x_BD)
        # The filter's taps run back in time, a window forwards.
        shifted_BD, window = short_convolution_step(k_BD, state.recent, self.shift[::-1])
        pairs = self._pairs(k_BD, shifted_BD, self.value(x_BD))
        remembered, hidden = self.systems.step(pairs, state.hidden)
        y_BD = self._read(remembered, pairs, self.query(x_BD))
        return y_BD, RecurrentState(window, hidden)

    def _heads(self, x: Array) -> Array:
        """[..., D] -> [..., P, H] in float32."""
        x = x.astype(jnp.float32).reshape(*x.shape[:-1], self.num_heads, self.config.head_dim)
        return jnp.swapaxes(x, -1, -2)

    def _pairs(self, k: Array, shifted: Array, v: Array) -> Array:
        """k' v^T in each head: [..., P, P, H]."""
        k = shifted + jax.lax.broadcast_to_rank(self.shift_skip, k.ndim) * k
        return self._heads(k)[..., :, None, :] * self._heads(v)[..., None, :, :]

    def _read(self, remembered: Array, pairs: Array, q: Array) -> Array:
        pairs = remembered + jax.lax.broadcast_to_rank(self.skip, pairs.ndim) * pairs
        y = (self._heads(q)[..., :, None, :] * pairs).sum(axis=-3)  # [..., P, H]
        y = jnp.swapaxes(y, -1, -2).reshape(q.shape)
        return self.out(y.astype(q.dtype))


@dataclass(frozen=True)
class H3(DiagonalOptions, BothWaysConfig):
    """H3's sizes."""

    module: ClassVar[type[Mixer]] = H3Mixer

    head_dim: PositiveInt = 1  #: P; time, memory and the state grow with it
    shift_size: PositiveInt = 64  #: tokens that the shift system sees, the present one included

    def check(self, context: MixerContext, hooks: frozenset[str]) -> None:
        super().check(context, hooks)
        BothWaysConfig.check(self, context, hooks)
        if context.d_model % self.head_dim:
            raise UserError(
                f"head_dim={self.head_dim}: must divide model.d_model={context.d_model}"
            )
