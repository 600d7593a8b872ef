"""The model's shape: all that `params` depend on, and nothing of how it is run."""

from collections.abc import Sequence
from dataclasses import dataclass, field, fields
from typing import Any, Literal

from transformer_jax.config_types import Strings
from transformer_jax.errors import UserError
from transformer_jax.layers.feed_forward import ACTIVATIONS
from transformer_jax.mixers.base import NOT_CROSS, MixerContext
from transformer_jax.mixers.checks import refuse_option
from transformer_jax.mixers.registry import (
    CROSS_MIXERS,
    MIXERS,
    CrossMixerOptions,
    MixerOptions,
)
from transformer_jax.positions.base import HOOKS
from transformer_jax.positions.registry import POSITIONS, PositionOptions

Float = Literal["float32", "bfloat16"]


@dataclass(frozen=True)
class StackConfig:
    """One stack of blocks, encoder or decoder."""

    num_layers: int = 6
    mixers: Strings = ("full",)  #: a pattern of mixer names, cycled over the depth
    position: str = "sinusoidal"
    options: MixerOptions = field(default_factory=MixerOptions)
    position_options: PositionOptions = field(default_factory=PositionOptions)


@dataclass(frozen=True)
class ModelConfig:
    """An encoder-decoder Transformer; the defaults are the paper's base model.

    `dtype` is that of activations, `matmul_dtype` that of the operands of matrix
    products (which accumulate in float32), `param_dtype` that of parameters. Softmax,
    normalisation statistics and losses are float32 always. "auto" is settled when a run
    starts, and its config.json holds what it became.
    """

    source_vocab_size: int = 0  #: 0 = the tokenizer's
    target_vocab_size: int = 0  #: 0 = the tokenizer's
    d_model: int = 512
    d_ff: int = 2048
    num_heads: int = 8
    head_dim: int = 0  #: 0 = d_model / num_heads
    encoder: StackConfig = field(default_factory=StackConfig)
    decoder: StackConfig = field(default_factory=StackConfig)
    cross: str = "full"  #: the mixer that reads the memory
    cross_options: CrossMixerOptions = field(default_factory=CrossMixerOptions)
    norm: Literal["pre", "post"] = "pre"  #: where LayerNorm stands; "post" is the paper's
    residual: Literal["standard", "reversible"] = "standard"
    #: reversible: two streams; training's activation memory does not grow with depth
    activation: str = "relu"
    tie_embeddings: Literal["all", "decoder", "none"] = "all"
    dropout_rate: float = 0.1  #: after each sublayer and on the embeddings
    attention_dropout_rate: float = 0.0
    feed_forward_dropout_rate: float = 0.0
    max_length: int = 256  #: longest source or target, in pieces, EOS included
    dtype: Float = "float32"
    matmul_dtype: Literal["auto", "float32", "bfloat16"] = "float32"  #: auto = the faster here
    param_dtype: Float = "float32"
    remat: bool = False  #: recompute each block in the backward pass to save memory


def head_dim(config: ModelConfig) -> int:
    """Width of one attention head."""
    return config.head_dim or config.d_model // config.num_heads


def layer_dtypes(config: ModelConfig) -> dict[str, str]:
    """The three dtypes every layer is built with."""
    return {
        "dtype": config.dtype,
        "matmul_dtype": config.matmul_dtype,
        "param_dtype": config.param_dtype,
    }


def mixer_context(config: ModelConfig, *, causal: bool) -> MixerContext:
    """The model's side of a mixer's configuration."""
    return MixerContext(
        d_model=config.d_model,
        num_heads=config.num_heads,
        head_dim=head_dim(config),
        causal=causal,
        max_length=config.max_length,
        attention_dropout_rate=config.attention_dropout_rate,
        dtypes=layer_dtypes(config),
    )


def layer_mixers(stack: StackConfig) -> list[str]:
    """The mixer of each layer: the pattern, cycled over the depth."""
    return [stack.mixers[i % len(stack.mixers)] for i in range(stack.num_layers)]


def word_width(config: ModelConfig, stack: StackConfig) -> int:
    """Width of the word embeddings that a stack's position scheme takes."""
    options = getattr(stack.position_options, stack.position)
    return POSITIONS[stack.position].word_width(config.d_model, options)


def check_model_config(config: ModelConfig) -> None:
    """Raises UserError naming the first key that cannot work, and what would."""
    for key in ("d_model", "d_ff", "num_heads", "max_length"):
        if getattr(config, key) < 1:
            raise UserError(f"model.{key} must be at least 1, got {getattr(config, key)}")
    if not config.head_dim and config.d_model % config.num_heads:
        raise UserError(
            f"model.d_model={config.d_model} is not divisible by model.num_heads="
            f"{config.num_heads}: change one of them, or set model.head_dim"
        )
    if config.matmul_dtype == "auto":
        raise UserError(
            "model.matmul_dtype=auto is settled by train.py alone; give float32 or bfloat16"
        )
    for key in ("dropout_rate", "attention_dropout_rate", "feed_forward_dropout_rate"):
        if not 0.0 <= getattr(config, key) < 1.0:
            raise UserError(f"model.{key} must lie in [0, 1), got {getattr(config, key)}")
    if config.residual == "reversible" and config.norm != "pre":
        raise UserError(
            "model.residual=reversible can be undone only where each sublayer adds to its stream: "
            "set model.norm=pre"
        )
    if config.residual == "reversible" and config.remat:
        raise UserError(
            "model.residual=reversible recomputes every block as it is: set model.remat=false"
        )
    _check_name("model.activation", config.activation, ACTIVATIONS)
    for role in ("encoder", "decoder"):
        stack: StackConfig = getattr(config, role)
        if stack.num_layers < 1:
            raise UserError(f"model.{role}.num_layers must be at least 1, got {stack.num_layers}")
        if not stack.mixers:
            raise UserError(f"model.{role}.mixers is empty: name at least one, such as full")
        _check_name(f"model.{role}.position", stack.position, POSITIONS)
        for name in stack.mixers:
            _check_name(f"model.{role}.mixers", name, MIXERS)
            reason = MIXERS[name].refuses.get(role)
            if reason:
                raise UserError(f"model.{role}.mixers={name}: {reason}")
        mixers = f"model.{role}.mixers is {','.join(stack.mixers)}"
        _check_unused(stack.options, f"model.{role}.options", stack.mixers, mixers)
        position = f"model.{role}.position is {stack.position}"
        key = f"model.{role}.position_options"
        _check_unused(stack.position_options, key, (stack.position,), position)
        _check_position(config, role, stack)
        for name in dict.fromkeys(layer_mixers(stack)):
            MIXERS[name].check(
                mixer_context(config, causal=role == "decoder"),
                getattr(stack.options, name),
                hooks=POSITIONS[stack.position].hooks(),
                key=f"model.{role}.options.{name}",
            )
    if config.cross in MIXERS and config.cross not in CROSS_MIXERS:
        reason = MIXERS[config.cross].refuses.get("cross", NOT_CROSS)
        raise UserError(
            f"model.cross={config.cross}: {reason}; use {' or '.join(sorted(CROSS_MIXERS))}"
        )
    _check_name("model.cross", config.cross, CROSS_MIXERS)
    cross = f"model.cross is {config.cross}"
    _check_unused(config.cross_options, "model.cross_options", (config.cross,), cross)
    CROSS_MIXERS[config.cross].check(
        mixer_context(config, causal=False),
        getattr(config.cross_options, config.cross),
        key=f"model.cross_options.{config.cross}",
    )
    if config.tie_embeddings == "all" and config.source_vocab_size != config.target_vocab_size:
        raise UserError(
            "model.tie_embeddings=all needs one vocabulary for both languages, got "
            f"{config.source_vocab_size} and {config.target_vocab_size} pieces: set "
            "tokenizer.joint=true or model.tie_embeddings=decoder"
        )
    widths = [word_width(config, stack) for stack in (config.encoder, config.decoder)]
    if config.tie_embeddings == "all" and widths[0] != widths[1]:
        raise UserError(
            "model.tie_embeddings=all needs word embeddings of one width, but "
            f"model.encoder.position={config.encoder.position} leaves them {widths[0]} features "
            f"and model.decoder.position={config.decoder.position} {widths[1]}: use one scheme "
            "for both or model.tie_embeddings=decoder"
        )


def _check_position(config: ModelConfig, role: str, stack: StackConfig) -> None:
    """A hook must reach every mixer that needs it to know the order, and one at least."""
    scheme = POSITIONS[stack.position]
    key = f"model.{role}.position"
    scheme.check(
        getattr(stack.position_options, stack.position),
        f"model.{role}.position_options.{stack.position}",
        d_model=config.d_model,
        head_dim=head_dim(config),
    )
    mixers = list(dict.fromkeys(layer_mixers(stack)))
    for hook in sorted(scheme.hooks() - {"embed"}):
        deaf = [name for name in mixers if hook not in MIXERS[name].honours]
        needy = [name for name in deaf if not MIXERS[name].knows_order]
        if needy:
            raise UserError(
                f"{key}={stack.position} {HOOKS[hook]}, which model.{role}.mixers={needy[0]} "
                f"does not do: use {key}={' or '.join(_positions_for(needy[0]))}"
            )
        if len(deaf) == len(mixers):
            raise UserError(
                f"{key}={stack.position} {HOOKS[hook]}, which no mixer of the stack does "
                f"({', '.join(mixers)}; they know the order without): use {key}=none or "
                "sinusoidal"
            )


def _positions_for(mixer: str) -> list[str]:
    """The schemes whose every hook reaches this mixer."""
    reached = MIXERS[mixer].honours | {"embed"}
    return [name for name, cls in POSITIONS.items() if cls.hooks() and cls.hooks() <= reached]


def _check_unused(every: Any, key: str, used: Sequence[str], chosen: str) -> None:
    """Refuses an option of what is not used: it would change nothing.

    Args:
        every: a dataclass with the options of each mixer, or of each position scheme.
        key: where it stands in the config.
        used: the names whose options count.
        chosen: what says so, as "model.encoder.mixers is full".
    """
    for name in (one.name for one in fields(every) if one.name not in used):
        options = getattr(every, name)
        defaults = type(options)()
        for option in fields(options):
            default = getattr(defaults, option.name)
            why = f"{chosen}; name {name} there, or leave the option at {default}"
            refuse_option(options, f"{key}.{name}", option.name, why)


def _check_name(key: str, name: str, registry: dict[str, Any]) -> None:
    if name not in registry:
        raise UserError(f"{key}={name} is unknown; choose one of {', '.join(sorted(registry))}")
