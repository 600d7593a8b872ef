"""CTranslate2, the runtime of the field on CPUs and GPUs (github.com/OpenNMT/CTranslate2).

The folder holds `model.bin`, `config.json` and the vocabularies of CTranslate2, and the
SentencePiece models. CTranslate2's Python package writes them; it runs the model elsewhere too.

Positions and sparse mixers become tables (`stack_tables.py`), with the same result: that of biases
is a T5 table with a row for each distance. CTranslate2 computes it in the first layer that has one,
for all layers of the stack that have one.

CTranslate2's own search differs from ours in details: see docs/interop.md.
"""

from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from etils import epath

from transformer_jax.config import Config
from transformer_jax.errors import UserError, optional
from transformer_jax.formats.exporter import (
    Exporter,
    TrainedModel,
    check_alignment_head,
    check_expressed,
    write_pieces,
)
from transformer_jax.formats.stack_tables import EXPRESSED, StackTables, widened
from transformer_jax.layers.feed_forward import Glu
from transformer_jax.layers.norms import RMSNorm
from transformer_jax.mixers.registry import MIXERS
from transformer_jax.models.api import Params
from transformer_jax.models.config import (
    ModelConfig,
    mixer_context,
)
from transformer_jax.models.paths import by_path
from transformer_jax.models.quantization import Int8Dynamic
from transformer_jax.models.transformer import UNUSED
from transformer_jax.positions.registry import POSITIONS
from transformer_jax.positions.rope import Rope
from transformer_jax.settings.variants import kind_of, to_text
from transformer_jax.vocabulary import BOS_ID, EOS_ID, PAD_ID, UNK_ID

#: Our activation -> CTranslate2's.
ACTIVATIONS = {
    "relu": "RELU",
    "gelu": "GELU",
    "gelu_tanh": "GELUTanh",
    "silu": "SWISH",
    "sigmoid": "Sigmoid",
}


@dataclass(frozen=True)
class CTranslate2(Exporter):
    """A folder for `ctranslate2.Translator`."""

    quantization: Literal["float32", "float16", "int16", "int8", "int8_float32", "int8_float16"] = (
        "float32"  #: how weights are stored
    )

    def check(self, config: Config) -> None:
        optional("ctranslate2", "format=ctranslate2", "ctranslate2")
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
        prefix = [source[i] for i in model.tokenizers.source.prefix]
        spec.config.add_attribute("source_prefix", prefix)
        spec.validate()
        spec.optimize(quantization=self.quantization)
        spec.save(str(folder))
        write_pieces(model, folder)


def _start_id(config: ModelConfig) -> int:
    """The piece that the decoder starts with; padding, whose embedding is zeros, for none."""
    return PAD_ID if config.start_id is None else config.start_id


#: Parameters by path, float32. What is written is taken out, so that nothing can be forgotten.
_Flat = dict[str, np.ndarray]


class _Stack(StackTables):
    """A stack whose layers share one table of biases."""

    def check(self) -> None:
        """Raises UserError for what CTranslate2 cannot do with a table of biases."""
        pairs = zip(self.reads, self.has_table, strict=True)
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

    def bias_table(self, layer: int) -> np.ndarray:
        """CTranslate2's T5 table: [rows, H], exact at every distance below `length`.

        Half of the rows of a direction are one distance each; `relative_buckets` in
        `positions/t5.py` has the formula.
        """
        bias_RH, here = self.biases(layer), self.length - 1
        halves = [bias_RH[here::-1]] if self.causal else [bias_RH[here::-1], bias_RH[here:]]
        # The rows of the larger distances, of which the model has none, repeat the last one.
        return np.concatenate(
            [np.pad(half, ((0, self.length), (0, 0)), mode="edge") for half in halves]
        )


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
    spec.encoder.embeddings[0].weight = widened(source_VE, config.d_model)
    spec.decoder.embeddings.weight = widened(target_VE, config.d_model)
    spec.decoder.projection.weight = widened(projection_VE, config.d_model)
    spec.encoder.scale_embeddings = config.embedding_scale or source_VE.shape[1] ** 0.5
    spec.decoder.scale_embeddings = config.embedding_scale or target_VE.shape[1] ** 0.5
    if config.logit_scale != 1:
        spec.decoder.scale_outputs = float(config.logit_scale)
    if config.output_bias or config.unused_ids:
        bias_V = flat.pop("output_bias/bias", np.zeros(len(target_VE), np.float32)).copy()
        bias_V[list(config.unused_ids)] += UNUSED
        spec.decoder.projection.bias = bias_V
    for causal, half in ((False, spec.encoder), (True, spec.decoder)):
        _fill_stack(half, _Stack(config, causal, params), config, flat)
    left = sorted(path for path in flat if "/position/" not in path)
    assert not left, f"not exported: {', '.join(left)}"
    return spec


def _fill_stack(spec: Any, stack: _Stack, config: ModelConfig, flat: _Flat) -> None:
    position = stack.config.position
    if not (stack.has_table[0] or isinstance(position, Rope)):
        spec.position_encodings.encodings = stack.encodings()
    options: dict[str, Any] = {"self_attention": True}
    if isinstance(position, Rope):
        head_dim = mixer_context(config, causal=False).head_dim
        options |= {"rotary_dim": head_dim, "rotary_base": position.base}
    for layer, (layer_spec, mixer) in enumerate(zip(spec.layer, stack.mixers, strict=True)):
        block = f"{stack.name}/blocks_{layer}"
        options["relative_attention_bias"] = stack.has_table[layer]
        attention = _attention(f"{block}/mixer", config, mixer, flat, **options)
        if stack.has_table[layer]:
            table = stack.bias_table(layer)
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
            _fill_linear(getattr(ffn, theirs), flat, f"{block}/feed_forward/{ours}")
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
    parts = [["query", "key", "value"], ["out"]]
    if not options.get("self_attention"):
        parts = [["query"], ["key", "value"], ["out"]]
    for linear, group in zip(spec.linear, parts, strict=True):
        _fill_linear(linear, flat, *(f"{name}/heads/{part}" for part in group))
    _fill_norm(spec.layer_norm, f"{name}_residual/norm", flat)
    return spec


def _fill_linear(spec: Any, flat: _Flat, *names: str) -> None:
    """One map for several, side by side."""
    kernels = {name: flat.pop(f"{name}/kernel") for name in names}
    spec.weight = np.concatenate([*kernels.values()], axis=1).T.copy()
    if any(f"{name}/bias" in flat for name in names):
        spec.bias = np.concatenate(
            [flat.pop(f"{n}/bias", np.zeros(w.shape[1], np.float32)) for n, w in kernels.items()]
        )


def _fill_norm(spec: Any, name: str, flat: _Flat) -> None:
    spec.gamma = flat.pop(f"{name}/scale")
    if hasattr(spec, "beta"):
        spec.beta = flat.pop(f"{name}/bias", np.zeros_like(spec.gamma))
