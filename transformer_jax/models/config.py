"""The model's shape: all that `params` depend on, and nothing of how it is run."""

from dataclasses import dataclass, field
from typing import Any, Literal

from transformer_jax.config_types import Strings
from transformer_jax.errors import UserError
from transformer_jax.layers.feed_forward import ACTIVATIONS
from transformer_jax.mixers.registry import (
    CROSS_MIXERS,
    MIXERS,
    CrossMixerOptions,
    MixerOptions,
)
from transformer_jax.positions.registry import POSITIONS

Float = Literal["float32", "bfloat16"]


@dataclass(frozen=True)
class StackConfig:
    """One stack of blocks, encoder or decoder."""

    num_layers: int = 6
    mixers: Strings = ("full",)  #: a pattern of mixer names, cycled over the depth
    position: str = "sinusoidal"
    options: MixerOptions = field(default_factory=MixerOptions)


@dataclass(frozen=True)
class ModelConfig:
    """An encoder-decoder Transformer; the defaults are the paper's base model.

    `dtype` is that of activations, `matmul_dtype` that of the operands of matrix
    products (which accumulate in float32), `param_dtype` that of parameters. Softmax,
    normalisation statistics and losses are float32 always.
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
    matmul_dtype: Float = "float32"
    param_dtype: Float = "float32"
    remat: bool = False  #: recompute each block in the backward pass to save memory


def head_dim(config: ModelConfig) -> int:
    """Width of one attention head."""
    return config.head_dim or config.d_model // config.num_heads


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
    _check_name("model.cross", config.cross, CROSS_MIXERS)
    if config.tie_embeddings == "all" and config.source_vocab_size != config.target_vocab_size:
        raise UserError(
            "model.tie_embeddings=all needs one vocabulary for both languages, got "
            f"{config.source_vocab_size} and {config.target_vocab_size} pieces: set "
            "tokenizer.joint=true or model.tie_embeddings=decoder"
        )


def _check_name(key: str, name: str, registry: dict[str, Any]) -> None:
    if name not in registry:
        raise UserError(f"{key}={name} is unknown; choose one of {', '.join(sorted(registry))}")
