"""CTranslate2, the runtime of the field on CPUs and GPUs (github.com/OpenNMT/CTranslate2).

The folder holds `model.bin`, `config.json` and the vocabularies of CTranslate2, and the
SentencePiece models. CTranslate2's Python package writes them; it runs the model elsewhere too.

Two things are written in another form, with the same result:

* Positions that are added to the embeddings become a table of vectors, as many as
  `model.max_length`; where the scheme has no end, at least 256, CTranslate2's own limit.
* A bias on the scores that depends on the distance alone (T5, ALiBi), and the keys that a `window`
  or `strided` mixer leaves out, become a T5 table with a row for each distance. CTranslate2
  computes it in the first layer that has one, for all layers of the stack that have one.

CTranslate2's own search differs from ours in details: see docs/interop.md.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

import jax.numpy as jnp
import numpy as np
from etils import epath

from transformer_jax.config import Config
from transformer_jax.errors import UserError
from transformer_jax.formats.exporter import (
    Exporter,
    TrainedModel,
    check_alignment_head,
    check_expressed,
    without_adapter,
)
from transformer_jax.layers.feed_forward import Glu, Mlp
from transformer_jax.layers.norms import LayerNorm, RMSNorm
from transformer_jax.mixers.base import MixerConfig
from transformer_jax.mixers.full_attention import Full, FullCross
from transformer_jax.mixers.registry import MIXERS
from transformer_jax.mixers.strided import Strided
from transformer_jax.mixers.window import Window
from transformer_jax.models.api import Params
from transformer_jax.models.config import (
    ModelConfig,
    StackConfig,
    layer_mixers,
    mixer_context,
)
from transformer_jax.models.lora import Lora, NoAdapter
from transformer_jax.models.paths import by_path
from transformer_jax.models.quantization import Int8Dynamic, NoQuantization
from transformer_jax.models.transformer import UNUSED
from transformer_jax.positions.alibi import Alibi
from transformer_jax.positions.concatenated import Concatenated
from transformer_jax.positions.learned import Learned
from transformer_jax.positions.none import NoPosition
from transformer_jax.positions.registry import POSITIONS
from transformer_jax.positions.rope import Rope
from transformer_jax.positions.scalar import Scalar
from transformer_jax.positions.sinusoidal import Sinusoidal
from transformer_jax.positions.t5 import T5
from transformer_jax.settings.variants import kind_of, to_text
from transformer_jax.vocabulary import BOS_ID, EOS_ID, PAD_ID, UNK_ID

_ATTENTION = frozenset({"num_kv_heads", "use_bias", "score_scale"})

EXPRESSED = {
    ModelConfig: frozenset(
        {
            *("source_vocab_size", "target_vocab_size", "start_id", "unused_ids", "max_length"),
            *("d_model", "d_ff", "num_heads", "head_dim", "norm_placement", "tie_embeddings"),
            *("embedding_scale", "embedding_norm", "logit_scale", "output_bias"),
        }
    ),
    StackConfig: frozenset({"num_layers"}),
    NoAdapter: frozenset(),
    Lora: frozenset({"rank", "alpha", "targets"}),  # put into the weights
    NoQuantization: frozenset(),
    Full: _ATTENTION,
    FullCross: _ATTENTION,
    Window: frozenset({"window", "dilation"}),
    Strided: frozenset({"stride"}),
    LayerNorm: frozenset({"epsilon", "use_bias"}),
    RMSNorm: frozenset({"epsilon"}),
    Mlp: frozenset({"activation", "use_bias"}),
    Glu: frozenset({"activation", "use_bias"}),
    NoPosition: frozenset(),
    Sinusoidal: frozenset({"form", "first"}),
    Learned: frozenset(),
    Concatenated: frozenset({"width"}),
    Scalar: frozenset(),
    T5: frozenset({"num_buckets", "max_distance", "multiplier"}),
    Alibi: frozenset(),
    Rope: frozenset({"base"}),
}

#: Our activation -> CTranslate2's.
ACTIVATIONS = {
    "relu": "RELU",
    "gelu": "GELU",
    "gelu_tanh": "GELUTanh",
    "silu": "SWISH",
    "sigmoid": "Sigmoid",
}

#: CTranslate2's default limit on the length of a translation.
_ITS_LENGTH = 256

#: The score of a key that is not read. Its exponential is 0 beside any other score of a trained
#: model, and float16 holds it.
_NOT_READ = -3e4


@dataclass(frozen=True)
class CTranslate2(Exporter):
    """A folder for `ctranslate2.Translator`."""

    quantization: Literal["float32", "float16", "int16", "int8", "int8_float32", "int8_float16"] = (
        "float32"  #: how weights are stored
    )

    def check(self, config: Config) -> None:
        try:
            import ctranslate2  # noqa: F401
        except ImportError as error:
            raise UserError(
                "format=ctranslate2 needs a package: ./run setup ctranslate2, or "
                "pip install ctranslate2"
            ) from error
        expressed = dict(EXPRESSED)
        if self.quantization in ("int8", "int8_float32"):
            expressed[Int8Dynamic] = frozenset()
        elif isinstance(config.model.quantize, Int8Dynamic):
            raise UserError(
                "model.quantize=int8_dynamic: give --format='ctranslate2(quantization=int8)'"
            )
        check_expressed(config.model, expressed, "CTranslate2")
        check_alignment_head(config.model, "CTranslate2")
        if config.model.start_id is None and PAD_ID not in config.model.unused_ids:
            raise UserError(
                "model.start_id=none: CTranslate2 starts from the embedding of a piece, which can "
                f"be the zeros of padding only if {PAD_ID} is in model.unused_ids; the format "
                "safetensors takes every model"
            )
        for causal in (False, True):
            _Stack(config.model, causal).check()

    def write(self, model: TrainedModel, folder: epath.Path) -> None:
        model = without_adapter(model)
        config = model.config.model
        spec = _filled_spec(config, model.params)
        source, target = (
            tokenizer.pieces(range(tokenizer.vocab_size))
            for tokenizer in (model.tokenizers.source, model.tokenizers.target)
        )
        spec.register_source_vocabulary(source)
        spec.register_target_vocabulary(target)
        spec.config.bos_token = target[BOS_ID]
        spec.config.decoder_start_token = target[_start_id(config)]
        spec.config.eos_token, spec.config.unk_token = target[EOS_ID], target[UNK_ID]
        spec.config.add_source_eos = True
        spec.config.layer_norm_epsilon = config.norm.epsilon
        # CTranslate2 does not read these two; its users need them.
        spec.config.add_attribute("max_length", config.max_length)
        spec.config.add_attribute(
            "source_prefix", [source[i] for i in model.tokenizers.source.prefix]
        )
        spec.validate()
        spec.optimize(quantization=self.quantization)
        spec.save(str(folder))
        models = model.tokenizers.by_file(lambda each: each.sentencepiece_model)
        for name, content in models.items():
            (folder / name).write_bytes(content)


def _start_id(config: ModelConfig) -> int:
    """The piece that the decoder starts with; padding, whose embedding is zeros, for none."""
    return PAD_ID if config.start_id is None else config.start_id


#: Parameters by path, float32. What is written is taken out, so that nothing can be forgotten.
_Flat = dict[str, np.ndarray]


class _Stack:
    """What becomes of the positions and the mixers of the encoder, or of the decoder if causal."""

    def __init__(self, config: ModelConfig, causal: bool) -> None:
        self.name = "decoder" if causal else "encoder"
        self.config: StackConfig = config.decoder if causal else config.encoder
        self.mixers = layer_mixers(self.config)
        self._causal = causal
        self._position = self.config.position.build(mixer_context(config, causal=causal))
        self.hooks = self._position.hooks()
        self._length = config.max_length
        if not isinstance(self.config.position, Learned | Scalar):
            self._length = max(self._length, _ITS_LENGTH)
        self._distances = np.arange(1 - self._length, self._length)
        self._reads = [self._reads_of(mixer, config.max_length) for mixer in self.mixers]
        #: whether each layer has a table of biases
        self.has_table = ["bias" in self.hooks or not all(reads) for reads in self._reads]

    def check(self) -> None:
        """Raises UserError for what CTranslate2 cannot do with a table of biases."""
        pairs = zip(self._reads, self.has_table, strict=True)
        kinds = {reads.tobytes() for reads, has_table in pairs if has_table}
        place = f"model.{self.name}.mixers={','.join(to_text(m, MIXERS) for m in self.mixers)}"
        if len(kinds) > 1:
            raise UserError(
                f"{place}: CTranslate2 has one table of biases for the layers of a stack, and "
                "these need several; the format safetensors takes every model"
            )
        if self.has_table[0] and "embed" in self.hooks:
            raise UserError(
                f"{place}: where the first layer does not read all keys, CTranslate2 cannot add "
                f"positions to the embeddings as model.{self.name}.position="
                f"{kind_of(self.config.position, POSITIONS)} does; train with position=rope, t5, "
                "alibi or none, or with a first layer of full attention"
            )

    def encodings(self, params: Params, d_model: int) -> np.ndarray:
        """What is added to the embeddings: [length, width of the words]."""
        words = jnp.zeros((1, self._length, self.config.position.word_width(d_model)))
        places = jnp.arange(self._length)
        return np.asarray(self._position.apply(params, words, places, method="embed")[0])

    def bias_table(self, params: Params, layer: int, num_heads: int) -> np.ndarray:
        """CTranslate2's T5 table: [rows, H], exact at every distance below `length`.

        Half of the rows of a direction are one distance each; `relative_buckets` in
        `positions/t5.py` has the formula.
        """
        bias_HR = np.zeros((num_heads, len(self._distances)), np.float32)
        if "bias" in self.hooks:
            here_1 = jnp.array([self._length - 1])
            keys_R = jnp.arange(len(self._distances))
            bias_H1R = self._position.apply(params, here_1, keys_R, method="bias")
            bias_HR += np.asarray(bias_H1R[:, 0], np.float32)
        bias_RH = np.where(self._reads[layer], bias_HR, _NOT_READ).T
        behind_RH, ahead_RH = bias_RH[self._length - 1 :: -1], bias_RH[self._length - 1 :]
        halves = [behind_RH] if self._causal else [behind_RH, ahead_RH]
        # The rows of the larger distances, of which the model has none, repeat the last one.
        return np.concatenate(
            [np.pad(half, ((0, self._length), (0, 0)), mode="edge") for half in halves]
        )

    def _reads_of(self, mixer: MixerConfig, max_length: int) -> np.ndarray:
        """Whether a query reads the keys at `_distances` (of key minus query), bool [R]."""
        away = np.abs(self._distances)
        if isinstance(mixer, Window):
            reads = (away <= mixer.window * mixer.dilation) & (away % mixer.dilation == 0)
        elif isinstance(mixer, Strided):
            stride = mixer.stride_for(max_length)
            reads = (away <= stride) | (away % stride == 0)
        else:
            reads = np.ones(len(away), bool)
        # A decoder's table has no rows for keys that follow.
        return reads | (self._distances > 0) if self._causal else reads


def _filled_spec(config: ModelConfig, params: Params) -> Any:
    """CTranslate2's description of the model, with the weights."""
    from ctranslate2.specs import common_spec, transformer_spec

    feed_forward: Any = config.feed_forward
    spec = transformer_spec.TransformerSpec.from_config(
        (config.encoder.num_layers, config.decoder.num_layers),
        config.num_heads,
        pre_norm=config.norm_placement == "pre",
        activation=common_spec.Activation[ACTIVATIONS[feed_forward.activation]],
        ffn_glu=isinstance(config.feed_forward, Glu),
        rms_norm=isinstance(config.norm, RMSNorm),
        layernorm_embedding=config.embedding_norm,
    )
    flat = {path: np.asarray(leaf, np.float32) for path, leaf in by_path(params).items()}
    target_VE = flat.pop("target_embedding/table")
    if config.start_id is None:
        target_VE = np.where(np.arange(len(target_VE))[:, None] == _start_id(config), 0, target_VE)
    source_VE = flat.pop("source_embedding/table", target_VE)
    projection_VE = flat.pop("projection/kernel", target_VE.T).T
    spec.encoder.embeddings[0].weight = _widened(source_VE, config.d_model)
    spec.decoder.embeddings.weight = _widened(target_VE, config.d_model)
    spec.decoder.projection.weight = _widened(projection_VE, config.d_model)
    spec.encoder.scale_embeddings = config.embedding_scale or source_VE.shape[1] ** 0.5
    spec.decoder.scale_embeddings = config.embedding_scale or target_VE.shape[1] ** 0.5
    if config.logit_scale != 1:
        spec.decoder.scale_outputs = float(config.logit_scale)
    if config.output_bias or config.unused_ids:
        bias_V = flat.pop("output_bias/bias", np.zeros(len(target_VE), np.float32)).copy()
        bias_V[list(config.unused_ids)] += UNUSED
        spec.decoder.projection.bias = bias_V
    for causal, half in ((False, spec.encoder), (True, spec.decoder)):
        stack = _Stack(config, causal)
        position = {"params": params[stack.name].get("position", {})}
        _fill_stack(half, stack, config, position, flat)
    left = sorted(path for path in flat if "/position/" not in path)
    assert not left, f"not exported: {', '.join(left)}"
    return spec


def _fill_stack(
    spec: Any, stack: _Stack, config: ModelConfig, position_params: Params, flat: _Flat
) -> None:
    position = stack.config.position
    if not (stack.has_table[0] or isinstance(position, Rope)):
        encodings = stack.encodings(position_params, config.d_model)
        spec.position_encodings.encodings = _widened(encodings, config.d_model)
    options: dict[str, Any] = {"self_attention": True}
    if isinstance(position, Rope):
        head_dim = mixer_context(config, causal=False).head_dim
        options |= {"rotary_dim": head_dim, "rotary_base": position.base}
    for layer, (layer_spec, mixer) in enumerate(zip(spec.layer, stack.mixers, strict=True)):
        block = f"{stack.name}/blocks_{layer}"
        options["relative_attention_bias"] = stack.has_table[layer]
        attention = _attention(f"{block}/mixer", config, mixer, flat, **options)
        if stack.has_table[layer]:
            table = stack.bias_table(position_params, layer, config.num_heads)
            attention.relative_attention_bias = table
            attention.relative_attention_max_distance = np.int32(len(table))
        layer_spec.self_attention = attention
        if stack.name == "decoder":
            layer_spec.attention = _attention(f"{block}/cross", config, config.cross, flat)
        ffn = layer_spec.ffn
        _fill_norm(ffn.layer_norm, f"{block}/feed_forward_residual/norm", flat)
        names = {"linear_0": "up", "linear_1": "down"}
        if isinstance(config.feed_forward, Glu):
            names = {"linear_0": "gate", "linear_0_noact": "up", "linear_1": "down"}
        for theirs, ours in names.items():
            _fill_linear(getattr(ffn, theirs), [_dense(flat, f"{block}/feed_forward/{ours}")])
    if config.embedding_norm:
        _fill_norm(spec.layernorm_embedding, f"{stack.name}/first_norm", flat)
    if config.norm_placement == "pre":
        _fill_norm(spec.layer_norm, f"{stack.name}/last_norm", flat)


def _attention(name: str, config: ModelConfig, mixer: Any, flat: _Flat, **options: Any) -> Any:
    """Attention with the maps and the norm of a sublayer."""
    from ctranslate2.specs import attention_spec

    spec = attention_spec.MultiHeadAttentionSpec(
        num_heads_kv=getattr(mixer, "num_kv_heads", None) or config.num_heads,
        head_dim=mixer_context(config, causal=False).head_dim,
        rms_norm=isinstance(config.norm, RMSNorm),
        **options,
    )
    if getattr(mixer, "score_scale", None):
        spec.queries_scale = float(mixer.score_scale)
    parts = ("query", "key", "value", "out")
    *maps, out = (_dense(flat, f"{name}/heads/{part}") for part in parts)
    grouped = [maps] if options.get("self_attention") else [maps[:1], maps[1:]]
    for linear, group in zip(spec.linear, [*grouped, [out]], strict=True):
        _fill_linear(linear, group)
    _fill_norm(spec.layer_norm, f"{name}_residual/norm", flat)
    return spec


#: A kernel [in, out] and its bias [out], or None.
_Dense = tuple[np.ndarray, np.ndarray | None]


def _dense(flat: _Flat, name: str) -> _Dense:
    return flat.pop(f"{name}/kernel"), flat.pop(f"{name}/bias", None)


def _fill_linear(spec: Any, maps: Sequence[_Dense]) -> None:
    """One map for several, side by side."""
    spec.weight = np.concatenate([kernel for kernel, _ in maps], axis=1).T.copy()
    if any(bias is not None for _, bias in maps):
        spec.bias = np.concatenate(
            [np.zeros(k.shape[1], np.float32) if b is None else b for k, b in maps]
        )


def _fill_norm(spec: Any, name: str, flat: _Flat) -> None:
    spec.gamma = flat.pop(f"{name}/scale")
    if hasattr(spec, "beta"):
        spec.beta = flat.pop(f"{name}/bias", np.zeros_like(spec.gamma))


def _widened(table_RE: np.ndarray, d_model: int) -> np.ndarray:
    """[R, D], with zeros at the features that a row does not have."""
    return np.pad(table_RE, ((0, 0), (0, d_model - table_RE.shape[1])))
