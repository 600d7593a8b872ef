"""The model's shape: everything that `params` depend on, and nothing about how it is run."""

import functools
from dataclasses import dataclass, field, fields
from typing import Annotated, Any, Literal

from pydantic import (
    BeforeValidator,
    NonNegativeInt,
    PositiveInt,
    ValidationError,
)

from transformer_jax.errors import UserError, placed, sentence
from transformer_jax.layers.dropout import DropoutRate
from transformer_jax.layers.feed_forward import FeedForwardConfig, Mlp
from transformer_jax.layers.norms import LayerNorm, NormConfig
from transformer_jax.layers.registry import FEED_FORWARDS, NORMS
from transformer_jax.mixers.base import NOT_CROSS, CrossMixerConfig, MixerConfig, MixerContext
from transformer_jax.mixers.full_attention import Full, FullCross
from transformer_jax.mixers.registry import CROSS_MIXERS, MIXERS
from transformer_jax.models.lora import ADAPTERS, Adapter, NoAdapter
from transformer_jax.models.quantization import QUANTIZATIONS, NoQuantization, Quantization
from transformer_jax.positions.base import HOOKS, PositionConfig
from transformer_jax.positions.registry import POSITIONS
from transformer_jax.positions.sinusoidal import Sinusoidal
from transformer_jax.settings.keys import adapter
from transformer_jax.settings.types import COMMAS, MAY_CHANGE, SETTLED, USUAL, Positive
from transformer_jax.settings.variants import ManyOf, OneOf, kind_of, to_text
from transformer_jax.vocabulary import BOS_ID

Float = Literal["float32", "bfloat16"]


def _is_cross(value: Any) -> Any:
    """Says why a mixer that exists cannot read the memory."""
    text = value.get("kind") if isinstance(value, dict) else str(value).partition("(")[0]
    kind = str(text).strip()
    if kind in MIXERS and kind not in CROSS_MIXERS:
        why = MIXERS[kind].refuses.get("cross", NOT_CROSS)
        raise ValueError(f"{kind}: {why}; use {' or '.join(sorted(CROSS_MIXERS))}")
    return value


@dataclass(frozen=True)
class StackConfig:
    """One stack of blocks, encoder or decoder."""

    num_layers: PositiveInt = 6  #: number of blocks
    mixers: Annotated[tuple[MixerConfig, ...], ManyOf(MIXERS), USUAL] = (Full(),)
    #: a pattern of mixers, cycled over the depth
    position: Annotated[PositionConfig, OneOf(POSITIONS)] = Sinusoidal()
    #: how the stack knows the places of its tokens


@dataclass(frozen=True)
class ModelConfig:
    """An encoder-decoder Transformer; the defaults are the paper's base model.

    `dtype` is that of activations, `matmul_dtype` that of the operands of matrix
    products (which accumulate in float32), `param_dtype` that of parameters. Softmax,
    normalisation statistics and losses are float32 always. "auto" is resolved when a run
    starts, and its config.json holds the result.
    """

    source_vocab_size: Annotated[PositiveInt, SETTLED] | None = None  #: None = the tokenizer's
    target_vocab_size: Annotated[PositiveInt, SETTLED] | None = None  #: None = the tokenizer's
    d_model: PositiveInt = 512  #: features of a token between the layers
    d_ff: PositiveInt = 2048  #: hidden features of the feed-forward networks
    num_heads: PositiveInt = 8  #: of attention, and of other mixers with heads
    head_dim: PositiveInt | None = None  #: None = d_model / num_heads
    encoder: StackConfig = field(default_factory=StackConfig)
    decoder: StackConfig = field(default_factory=StackConfig)
    cross: Annotated[CrossMixerConfig, OneOf(CROSS_MIXERS), BeforeValidator(_is_cross)] = (
        FullCross()
    )  #: the mixer that reads the memory
    norm: Annotated[NormConfig, OneOf(NORMS)] = LayerNorm()  #: of the features of a token
    norm_placement: Literal["pre", "post"] = "pre"
    #: before each sublayer and after each stack, or after each residual connection, as in the paper
    feed_forward: Annotated[FeedForwardConfig, OneOf(FEED_FORWARDS)] = Mlp()
    #: the network that each block applies to every token
    tie_embeddings: Literal["all", "decoder", "inputs", "none"] = "all"
    #: which of three matrices are one: both languages' embeddings and the projection to logits;
    #: the target's and the projection; both languages'; none
    embedding_scale: Positive | None = None  #: of the embeddings when read; None = sqrt(d_model)
    embedding_norm: bool = False  #: a norm before the first layer of each stack
    logit_scale: Positive = 1.0  #: of the features that are projected to logits
    output_bias: bool = False  #: a learned number for each target piece, added to its logit
    start_id: NonNegativeInt | None = BOS_ID
    #: the target piece whose embedding the decoder reads for BOS; None = zeros, as Marian does
    unused_ids: Annotated[tuple[NonNegativeInt, ...], COMMAS] = ()
    #: target ids that are never predicted
    adapter: Annotated[Adapter, OneOf(ADAPTERS)] = NoAdapter()  #: low-rank terms of the weights
    quantize: Annotated[Quantization, OneOf(QUANTIZATIONS)] = NoQuantization()
    #: products in 8 bits, as a runtime for them computes; a training simulates them
    dropout_rate: Annotated[DropoutRate, USUAL] = 0.1  #: after each sublayer and on the embeddings
    max_length: PositiveInt = 256  #: longest source or target, in pieces, EOS included
    dtype: Annotated[Literal["auto"] | Float, SETTLED] = "float32"
    #: of activations; auto = bfloat16 on an accelerator that multiplies it, else float32
    matmul_dtype: Annotated[Literal["auto"] | Float, SETTLED] = "float32"
    #: of the operands of matrix products; auto = the faster here
    param_dtype: Float = "float32"  #: of parameters
    remat: Annotated[bool, MAY_CHANGE, USUAL] = False
    #: recompute each block in the backward pass to save memory
    scan_layers: bool = False  #: run layers that are alike as one loop, to compile faster


def mixer_context(config: ModelConfig, *, causal: bool = False) -> MixerContext:
    """The model's side of a mixer's or a position scheme's configuration."""
    names = ("d_model", "num_heads", "max_length", "dtype", "matmul_dtype", "param_dtype")
    own: dict[str, Any] = {name: getattr(config, name) for name in names}
    head_dim = config.head_dim or config.d_model // config.num_heads
    return MixerContext(head_dim=head_dim, causal=causal, **own)


def layer_mixers(stack: StackConfig) -> list[MixerConfig]:
    """The mixer of each layer: the pattern, cycled over the depth."""
    return [stack.mixers[i % len(stack.mixers)] for i in range(stack.num_layers)]


def check_model_config(config: ModelConfig) -> None:
    """Raises UserError naming the first key that cannot work, and what would."""
    _check_fields(config)
    _check(config)


@functools.lru_cache
def _check(config: ModelConfig) -> None:
    """What several fields say together, once for each config."""
    if not config.head_dim and config.d_model % config.num_heads:
        raise UserError(
            f"model.d_model={config.d_model} is not divisible by model.num_heads="
            f"{config.num_heads}: change one of them, or set model.head_dim"
        )
    for key in ("dtype", "matmul_dtype"):
        if getattr(config, key) == "auto":
            raise UserError(
                f"model.{key}=auto is resolved by train.py alone; give float32 or bfloat16"
            )
    for key, ids in (("start_id", (config.start_id or 0,)), ("unused_ids", config.unused_ids)):
        if config.target_vocab_size and max(ids, default=0) >= config.target_vocab_size:
            raise UserError(
                f"model.{key}: {max(ids)} is not the id of a target piece, of which there are "
                f"{config.target_vocab_size}"
            )
    _check_stack(config, config.encoder, "encoder")
    _check_stack(config, config.decoder, "decoder")
    with placed(f"model.cross={to_text(config.cross, CROSS_MIXERS)}"):
        config.cross.check(mixer_context(config))
    tied = config.tie_embeddings in ("all", "inputs")
    if tied and config.source_vocab_size != config.target_vocab_size:
        raise UserError(
            f"model.tie_embeddings={config.tie_embeddings} needs one vocabulary for both "
            "languages, got "
            f"{config.source_vocab_size} and {config.target_vocab_size} pieces: set "
            "tokenizer.joint=true or model.tie_embeddings=decoder"
        )
    schemes = config.encoder.position, config.decoder.position
    widths = [scheme.word_width(config.d_model) for scheme in schemes]
    if tied and widths[0] != widths[1]:
        raise UserError(
            f"model.tie_embeddings={config.tie_embeddings} needs word embeddings of one width, but "
            f"model.encoder.position leaves them {widths[0]} features and model.decoder.position "
            f"{widths[1]}: use one scheme for both or model.tie_embeddings=decoder"
        )


def _check_fields(config: ModelConfig) -> None:
    """Types and ranges of the single fields, for a config that was written in Python."""
    try:
        valid = adapter(ModelConfig).validate_python(config)
    except ValidationError as error:
        raise UserError(f"model.{sentence(error)}") from error
    for name in (one.name for one in fields(config)):
        if getattr(valid, name) != getattr(config, name):  # such as mixers=("window",)
            raise UserError(f"model.{name}: in Python, write {getattr(valid, name)!r}")


def _check_stack(config: ModelConfig, stack: StackConfig, role: str) -> None:
    context = mixer_context(config, causal=role == "decoder")
    for mixer in stack.mixers:
        if why := mixer.refuses.get(role):
            raise UserError(f"model.{role}.mixers={kind_of(mixer, MIXERS)}: {why}")
    with placed(f"model.{role}.position={to_text(stack.position, POSITIONS)}"):
        stack.position.check(context)
    hooks = stack.position.build(context).hooks()
    mixers = list(dict.fromkeys(layer_mixers(stack)))
    # A hook must reach every mixer that needs it to know the order, and at least one.
    scheme = f"model.{role}.position={kind_of(stack.position, POSITIONS)}"
    for hook in sorted(hooks - {"embed"}):
        unsupported = [mixer for mixer in mixers if hook not in mixer.honours]
        without_order = [mixer for mixer in unsupported if not mixer.knows_order]
        if without_order:
            reached = without_order[0].honours | {"embed"}
            used = {name: cls().build(context).hooks() for name, cls in POSITIONS.items()}
            use = " or ".join(name for name in used if used[name] and used[name] <= reached)
            raise UserError(
                f"{scheme} {HOOKS[hook]}, which model.{role}.mixers="
                f"{kind_of(without_order[0], MIXERS)} does not do: use model.{role}.position={use}"
            )
        if len(unsupported) == len(mixers):
            raise UserError(
                f"{scheme} {HOOKS[hook]}, which no mixer of the stack does (they know the order "
                f"without): use model.{role}.position=none or sinusoidal"
            )
    for mixer in mixers:
        with placed(f"model.{role}.mixers={to_text(mixer, MIXERS)}"):
            mixer.check(context, hooks)
            if config.scan_layers and mixer.uses_layer:
                raise UserError("its layers are not alike: set model.scan_layers=false")
