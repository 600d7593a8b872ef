"""What the sparse attention mixers share: projections, position hooks, decoding.

A subclass defines which keys each query reads: in parallel (`attend`), and as the list of
cached positions that one token reads (`reads`).
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar

import jax.numpy as jnp
from jax import Array

from transformer_jax.layers.dropout import Dropout, DropoutRate
from transformer_jax.mixers.base import Mixer, MixerConfig, Refusals, State
from transformer_jax.mixers.heads import HeadProjections, bias_of, token_bias
from transformer_jax.ops.attention import QKV, Hooks
from transformer_jax.ops.key_value_cache import KeyValueCache, attend_to_cache


@dataclass(frozen=True, kw_only=True)
class SparseConfig(MixerConfig):
    """What the options of sparse attention mixers have in common."""

    refuses: ClassVar[Refusals] = {
        "cross": "which keys a token reads depends on its position among them, and a target token "
        "has no position in the source"
    }
    honours: ClassVar[frozenset[str]] = frozenset({"rotate", "bias"})

    dropout_rate: DropoutRate = 0.0  #: of the attention weights


class SparseAttention(Mixer):
    """Multi-head attention in which a query reads only some of the keys."""

    config: SparseConfig

    def setup(self) -> None:
        self.heads = HeadProjections(self.context)
        self.weight_dropout = Dropout(self.config.dropout_rate)

    def __call__(self, x_BLD: Array, mask_BL: Array) -> Array:
        qkv = self.heads.rotated(x_BLD, self.position, jnp.arange(x_BLD.shape[1]))
        hooks = self.hooks()
        self.show_weights(
            lambda values: self.attend((*qkv[:2], values), mask_BL, Hooks(hooks.bias)), x_BLD
        )
        y_BLHK = self.attend(qkv, mask_BL, hooks)
        return self.heads.join(y_BLHK.astype(qkv[2].dtype))

    def attend(self, qkv: QKV, mask_BL: Array, hooks: Hooks) -> Array:
        """The pattern, in parallel: [B, L, H, V]."""
        raise NotImplementedError

    def hooks(self) -> Hooks:
        """The position scheme's bias, if it has one, and the dropout of this call."""
        return Hooks(bias_of(self.position), self.config.dropout_rate, self.weight_dropout.key())

    def show_weights(self, attend: Callable[[Array], Array], x_BLD: Array) -> None:
        """Stores the L x L weights if `viewing.attention` asks for them."""
        if self.is_watched:
            batch, length, _ = x_BLD.shape
            # With the identity for values, the output is the weights.
            one_hot = jnp.eye(length)[None, :, None, :]
            shape = (batch, length, self.context.num_heads, length)
            weights_BLHL = attend(jnp.broadcast_to(one_hot, shape))
            self.sow("intermediates", "attention_weights", jnp.swapaxes(weights_BLHL, 1, 2))


class CachedSparseAttention(SparseAttention):
    """Sparse attention with keys far back: a step selects them from a cache of all tokens."""

    def init_state(self, batch: int, max_length: int) -> KeyValueCache:
        """Room for `max_length` tokens, of which a step reads only those in `reads`."""
        return self.heads.empty_cache(batch, max_length)

    def reads(self, position: Array, room: int) -> tuple[Array, Array]:
        """Positions [M] that the token at `position` reads, and which of them exist [M]."""
        raise NotImplementedError

    def step(self, x_BD: Array, state: KeyValueCache, position: Array) -> tuple[Array, State]:
        """Writes this token's key and value, and attends to the few positions that it reads."""
        q_BHK, k_BHK, v_BHK = self.heads.of_token(x_BD, self.position, position)
        cache = state.write(k_BHK, v_BHK, position)
        at_M, exists_M = self.reads(position, cache.room)
        at_M = jnp.where(exists_M, at_M, 0)
        bias_HM = token_bias(self.position, position, at_M)
        y_BHK = attend_to_cache(q_BHK, cache.at(at_M), exists_M, bias_HM)
        return self.heads.join(y_BHK), cache
