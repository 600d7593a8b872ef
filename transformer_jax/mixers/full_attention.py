"""Multi-head scaled dot-product attention (Vaswani et al. 2017, arXiv:1706.03762).

    head_h = softmax(x W_q,h (m W_k,h)^T / sqrt(head_dim)) m W_v,h
    y = [head_1 ... head_H] W_o

with m = x (self-attention) or the encoder's memory (cross-attention). O(L^2) time
and memory in training; a decoding step is O(L) and keeps keys and values of every
token so far. The fused implementation needs O(L) memory in training too.

Options let fewer key and value heads serve all queries (multi-query: Shazeer 2019,
arXiv:1911.02150; grouped: Ainslie et al. 2023, arXiv:2305.13245), put a short convolution on q, k
and v (Okpekpe and Orvieto 2025, arXiv:2508.19029), scale q and k to mean square 1 (Henry et al.
2020, arXiv:2010.04245), multiply heads by sigmoid(W_g x) (Qiu et al. 2025, arXiv:2505.06708), and
let a head attend to nothing: exp(sink) is added to the sum below its weights (OpenAI 2025,
arXiv:2508.10925).
"""

from dataclasses import dataclass
from typing import ClassVar, Literal, NamedTuple

import jax
import jax.numpy as jnp
from flax import linen as nn
from jax import Array
from pydantic import NonNegativeInt, PositiveInt

from transformer_jax.errors import UserError
from transformer_jax.layers.dropout import Dropout, DropoutRate
from transformer_jax.layers.short_convolution import ShortConvolution
from transformer_jax.mixers.base import (
    CrossMixer,
    CrossMixerConfig,
    Mixer,
    MixerConfig,
    MixerContext,
    MixerModule,
)
from transformer_jax.mixers.heads import HeadProjections, bias_of, token_bias
from transformer_jax.ops.attention import (
    MASKED,
    QKV,
    Bias,
    Hooks,
    attention_mask,
    attention_scores,
    attention_weights,
    weighted_values,
)
from transformer_jax.ops.flash_attention import chosen_kernel, flash_attention
from transformer_jax.ops.key_value_cache import KeyValueCache, attend_to_cache
from transformer_jax.settings.types import Positive

#: Fewer queries than this are not worth a kernel of their own.
_MIN_QUERIES = 16


@dataclass(frozen=True)
class FullOptions:
    """What self- and cross-attention have in common."""

    num_kv_heads: PositiveInt | None = None  #: heads of keys and values; None = num_heads
    implementation: Literal["auto", "plain", "fused"] = "auto"
    #: fused: memory linear in the length; auto: cuDNN's kernel where the GPU has it, else plain.
    #: For both, padding must be at the end of a row.
    use_bias: bool = True  #: of queries, values and the output
    score_scale: Positive | None = None  #: of the query-key product; None = 1 / sqrt(head_dim)
    dropout_rate: DropoutRate = 0.0  #: of the attention weights
    qk_norm: bool = False  #: queries and keys have mean square 1, times a learned scale
    output_gate: bool = False  #: each head's output is multiplied by a sigmoid of the token
    sinks: bool = False  #: a learned score of each head for attending to nothing

    def check(self, context: MixerContext, hooks: frozenset[str] = frozenset()) -> None:
        groups = self.num_kv_heads
        if groups and context.num_heads % groups:
            raise UserError(
                f"num_kv_heads={groups}: must divide model.num_heads={context.num_heads}"
            )
        if self.sinks and self.implementation == "fused":
            raise UserError("implementation=fused: its kernels have no sinks; give plain or auto")


class Memory(NamedTuple):
    """The projected memory: keys [B, G, K, M], values [B, G, M, K] and the mask [B, M].

    These are the operands of a step's products, so that a step does not move them.
    """

    key: Array
    value: Array
    mask: Array


class ConvolvedCache(NamedTuple):
    """The state of attention with a convolution: its last inputs [B, taps - 1, channels]."""

    cache: KeyValueCache
    recent: Array


class DotProductAttention(MixerModule):
    """Projections and attention, for self- and cross-attention."""

    config: FullOptions

    def setup(self) -> None:
        c, o = self.context, self.config
        self.heads = HeadProjections(c, o.num_kv_heads, o.use_bias)
        self.weight_dropout = Dropout(o.dropout_rate)
        if o.qk_norm:
            options = {"center": False, "use_bias": False, "axis": "head_dim"}
            self.query_norm, self.key_norm = (c.norm(c.head_dim, 1e-6, **options) for _ in range(2))
        if o.output_gate:
            axes, width = ("embed", "heads"), c.num_heads * c.head_dim
            self.gate = c.linear(c.d_model, width, axes, use_bias=o.use_bias)
        zeros = nn.initializers.zeros
        self.sink = self.weight("sink", zeros, (c.num_heads,), ("heads",)) if o.sinks else None

    def normalised(self, q: Array, k: Array) -> tuple[Array, Array]:
        """Queries and keys, which `qk_norm` changes."""
        return (self.query_norm(q), self.key_norm(k)) if self.config.qk_norm else (q, k)

    def join(self, heads: Array, x: Array) -> Array:
        """The heads' outputs for tokens x, gated and joined."""
        if self.config.output_gate:
            gate = nn.sigmoid(self.gate.split(x, self.context.num_heads).astype(jnp.float32))
            heads = (heads * gate).astype(heads.dtype)
        return self.heads.join(heads)

    def hooks(self, bias: Bias | None = None, dropout_key: Array | None = None) -> Hooks:
        """What is applied to scores and weights, in a call or in a step."""
        o = self.config
        return Hooks(bias, o.dropout_rate, dropout_key, scale=o.score_scale, sink_H=self.sink)

    def attend(
        self, qkv: QKV, key_mask_BM: Array, *, causal: bool = False, bias: Bias | None = None
    ) -> Array:
        """[B, T, H, K] by the chosen implementation; sows the weights if they are asked for."""
        o, (q_BTHK, k_BMGK, v_BMGK) = self.config, qkv
        hooks = self.hooks(bias, self.weight_dropout.key())
        # In a decoding step a query is one of a few beams. The kernel works on 64 at a time.
        has_kernel = chosen_kernel(q_BTHK, hooks) == "cudnn" and q_BTHK.shape[1] >= _MIN_QUERIES
        is_fused = o.implementation == "fused" or (o.implementation == "auto" and has_kernel)
        if is_fused and not o.sinks and not self.is_watched:
            return flash_attention(qkv, key_mask_BM, hooks, causal=causal)
        mask = attention_mask(key_mask_BM, causal=causal)
        bias_HTM = bias(jnp.arange(q_BTHK.shape[1]), jnp.arange(k_BMGK.shape[1])) if bias else None
        weights_BHTM = attention_weights(q_BTHK, k_BMGK, mask, bias_HTM, hooks)
        if self.is_watched:
            self.sow("intermediates", "attention_weights", weights_BHTM)
        return weighted_values(hooks.drop(weights_BHTM), v_BMGK).astype(v_BMGK.dtype)


class FullAttention(DotProductAttention, Mixer):
    """Self-attention over the whole sequence, or over the past in the decoder."""

    config: "Full"

    def setup(self) -> None:
        super().setup()
        c, o = self.context, self.config
        channels = (c.num_heads + 2 * (o.num_kv_heads or c.num_heads)) * c.head_dim
        self.conv = ShortConvolution(channels, o.conv_width, c.dtype, c.param_dtype)

    def __call__(self, x_BLD: Array, mask_BL: Array) -> Array:
        at_L, bias = jnp.arange(x_BLD.shape[1]), bias_of(self.position)
        qkv, causal = self._projected(x_BLD), self.context.causal
        if self.config.conv_width:
            mixed_BLE = _side_by_side(qkv)
            mixed_BLE = self.conv(mixed_BLE) if causal else self.conv.centered(mixed_BLE, mask_BL)
            qkv = _apart(mixed_BLE, qkv)
        y_BLHK = self.attend(self._placed(qkv, at_L), mask_BL, causal=causal, bias=bias)
        return self.join(y_BLHK, x_BLD)

    def _projected(self, x: Array) -> QKV:
        return (self.heads.queries(x), *self.heads.keys_values(x))

    def _placed(self, qkv: QKV, at_L: Array) -> QKV:
        q_BLHK, k_BLGK, v_BLGK = qkv
        return (*self.position.rotate(*self.normalised(q_BLHK, k_BLGK), at_L, at_L), v_BLGK)

    def init_state(self, batch: int, max_length: int) -> KeyValueCache | ConvolvedCache:
        """Room for `max_length` tokens."""
        cache = self.heads.empty_cache(batch, max_length)
        has_conv = self.config.conv_width
        return ConvolvedCache(cache, self.conv.init_window(batch)) if has_conv else cache

    def step(
        self, x_BD: Array, state: KeyValueCache | ConvolvedCache, position: Array
    ) -> tuple[Array, KeyValueCache | ConvolvedCache]:
        """Writes this token's key and value at `position` and attends to those so far."""
        qkv, window = self._projected(x_BD), None
        if isinstance(state, ConvolvedCache):
            mixed_BE, window = self.conv.step(_side_by_side(qkv), state.recent)
            qkv, state = _apart(mixed_BE, qkv), state.cache
        q, k, v = qkv
        placed = self._placed((q[:, None], k[:, None], v[:, None]), position[None])
        q_BHK, k_BGK, v_BGK = (x[:, 0] for x in placed)
        cache = state.write(k_BGK, v_BGK, position)
        at_T = jnp.arange(cache.room)
        reads_T, bias_HT = at_T <= position, token_bias(self.position, position, at_T)
        y_BHK = attend_to_cache(q_BHK, cache, reads_T, bias_HT, self.hooks(), length=position + 1)
        return self.join(y_BHK, x_BD), cache if window is None else ConvolvedCache(cache, window)


@dataclass(frozen=True)
class Full(FullOptions, MixerConfig):
    """Options of full self-attention."""

    module: ClassVar[type[Mixer]] = FullAttention
    quadratic: ClassVar[frozenset[str]] = frozenset({"encoder", "decoder"})
    honours: ClassVar[frozenset[str]] = frozenset({"rotate", "bias"})

    conv_width: NonNegativeInt = 0
    #: taps of a convolution on q, k and v, in the encoder half of them on what follows; 0 = none


def _side_by_side(qkv: QKV) -> Array:
    """[..., H or G, K] -> [..., channels]."""
    return jnp.concatenate([x.reshape(*x.shape[:-2], -1) for x in qkv], axis=-1)


def _apart(mixed: Array, qkv: QKV) -> QKV:
    """The inverse of `_side_by_side`, for arrays of the shapes of `qkv`."""
    q, k, _ = qkv
    first, second = q.shape[-2] * q.shape[-1], k.shape[-2] * k.shape[-1]
    parts = jnp.split(mixed, [first, first + second], axis=-1)
    q, k, v = (part.reshape(x.shape) for part, x in zip(parts, qkv, strict=True))
    return q, k, v


class FullCrossAttention(DotProductAttention, CrossMixer):
    """Every target position attends to every real source position."""

    config: "FullCross"

    def project(self, memory_BMD: Array, mask_BM: Array) -> Memory:
        """Keys and values of the memory, once a sentence."""
        k_BMGK, v_BMGK = self.heads.keys_values(memory_BMD)
        k_BMGK = self.normalised(k_BMGK, k_BMGK)[1]
        return Memory(jnp.moveaxis(k_BMGK, 1, 3), v_BMGK.swapaxes(1, 2), mask_BM)

    def read(self, x_BTD: Array, projected: Memory) -> Array:
        k_BMGK, v_BMGK = jnp.moveaxis(projected.key, 3, 1), projected.value.swapaxes(1, 2)
        q_BTHK = self.heads.queries(x_BTD)
        q_BTHK = self.normalised(q_BTHK, q_BTHK)[0]
        if self.is_mutable_collection("alignment") and not self.is_initializing():
            log_BTM = self._log_alignment(q_BTHK, k_BMGK, projected.mask)
            self.sow("alignment", "log_weights", log_BTM)
        return self.join(self.attend((q_BTHK, k_BMGK, v_BMGK), projected.mask), x_BTD)

    def _log_alignment(self, q_BTHK: Array, k_BMGK: Array, mask_BM: Array) -> Array:
        """Logarithms of the weights of `alignment_head`, float32 [B, T, M]."""
        head, heads, groups = self.config.alignment_head, q_BTHK.shape[2], k_BMGK.shape[2]
        assert head is not None
        group = head * groups // heads
        q_BT1K, k_BM1K = q_BTHK[:, :, head : head + 1], k_BMGK[:, :, group : group + 1]
        scores_B1TM = attention_scores(q_BT1K, k_BM1K, self.hooks())
        return jax.nn.log_softmax(jnp.where(mask_BM[:, None], scores_B1TM[:, 0], MASKED), axis=-1)


@dataclass(frozen=True)
class FullCross(FullOptions, CrossMixerConfig):
    """Options of full attention to the memory."""

    module: ClassVar[type[CrossMixer]] = FullCrossAttention
    quadratic: ClassVar[bool] = True

    alignment_head: NonNegativeInt | None = None
    #: the head of the last layer that learns word alignments, with train.alignment_weight; none =
    #: alignments are the mean of all heads

    def check(self, context: MixerContext, hooks: frozenset[str] = frozenset()) -> None:
        super().check(context, hooks)
        if self.alignment_head is not None and self.alignment_head >= context.num_heads:
            raise UserError(
                f"alignment_head={self.alignment_head}: the heads are 0 to {context.num_heads - 1}"
            )
