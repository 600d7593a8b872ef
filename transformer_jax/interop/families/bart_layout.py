"""The layers that Marian, M2M100 and mBART share in Transformers: names, and the config's keys."""

from typing import Any, Literal

from transformer_jax.errors import UserError
from transformer_jax.interop.families.base import EmbeddingNames
from transformer_jax.interop.settings import Settings
from transformer_jax.interop.tables import AS_ROW, TRANSPOSED, Shape, Tensor, chain, rows
from transformer_jax.interop.vocabularies import Arrangement
from transformer_jax.layers.feed_forward import Activation, Mlp
from transformer_jax.layers.norms import LayerNorm
from transformer_jax.mixers.full_attention import Full, FullCross
from transformer_jax.models.config import ModelConfig, StackConfig
from transformer_jax.positions.base import PositionConfig

#: Transformers' names of activations.
ACTIVATIONS: dict[str, Activation] = {
    "relu": "relu",
    "gelu": "gelu",
    "gelu_new": "gelu_tanh",
    "silu": "silu",
    "swish": "silu",
}

#: Names of the embeddings and of the projection to logits.
EMBEDDINGS = EmbeddingNames(
    ("model.shared.weight", "model.encoder.embed_tokens.weight"),
    ("model.shared.weight", "model.decoder.embed_tokens.weight"),
    ("lm_head.weight",),
)

#: Our projections and theirs.
_PROJECTIONS = {"query": "q_proj", "key": "k_proj", "value": "v_proj", "out": "out_proj"}


def bart_config(
    settings: Settings,
    *,
    position: PositionConfig,
    norm_placement: Literal["pre", "post"],
    epsilon: float = 1e-5,
    **more: Any,
) -> ModelConfig:
    """The model that `config.json` describes; `more` are further options.

    Raises:
        UserError: a key is missing, or what it says cannot be expressed.
    """
    for ours in ("ffn_dim", "attention_heads"):
        encoder, decoder = (settings.number(f"{stack}_{ours}") for stack in ("encoder", "decoder"))
        if encoder != decoder:
            raise UserError(
                f"{settings.origin}: encoder_{ours}={encoder} and decoder_{ours}={decoder} must "
                "be equal"
            )
    d_model, heads = settings.number("d_model"), settings.number("encoder_attention_heads")
    attention_dropout = settings.get("attention_dropout", float, 0.0)
    scaled = settings.get("scale_embedding", bool, False)

    def stack(name: str) -> StackConfig:
        layers = settings.number(f"{name}_layers")
        return StackConfig(
            num_layers=layers, mixers=(Full(dropout_rate=attention_dropout),), position=position
        )

    return ModelConfig(
        d_model=d_model,
        d_ff=settings.number("encoder_ffn_dim"),
        num_heads=heads,
        encoder=stack("encoder"),
        decoder=stack("decoder"),
        cross=FullCross(dropout_rate=attention_dropout),
        norm=LayerNorm(epsilon=epsilon),
        norm_placement=norm_placement,
        feed_forward=Mlp(
            activation=settings.choose("activation_function", ACTIVATIONS),
            dropout_rate=settings.get("activation_dropout", float, 0.0),
        ),
        embedding_scale=None if scaled else 1.0,
        dropout_rate=settings.get("dropout", float, 0.0),
        max_length=settings.number("max_position_embeddings"),
        **more,
    )


def bart_keys(model: ModelConfig) -> dict[str, Any]:
    """The keys of `config.json` that `bart_config` reads, of the most similar model that it gives.

    Where this is not the same model, an option of `model` has no place in the layout.
    """
    keys: dict[str, Any] = {}
    for side, stack in (("encoder", model.encoder), ("decoder", model.decoder)):
        keys |= {
            f"{side}_layers": stack.num_layers,
            f"{side}_attention_heads": model.num_heads,
            f"{side}_ffn_dim": model.d_ff,
        }
    theirs: dict[str, str] = {ours: name for name, ours in ACTIVATIONS.items()}
    return keys | {
        "d_model": model.d_model,
        "activation_function": theirs.get(getattr(model.feed_forward, "activation", ""), "relu"),
        "scale_embedding": model.embedding_scale != 1.0,
        "dropout": model.dropout_rate,
        "attention_dropout": getattr(model.cross, "dropout_rate", 0.0),
        "activation_dropout": getattr(model.feed_forward, "dropout_rate", 0.0),
        "max_position_embeddings": model.max_length,
    }


def output_bias(target: Arrangement) -> Tensor:
    """The bias of the logits."""
    change = chain(AS_ROW, rows(target.order))
    return Tensor("output_bias/bias", ("final_logits_bias",), change)


def bart_layers(model: ModelConfig) -> tuple[list[Tensor], dict[str, Shape]]:
    """(the tensors of both stacks without embeddings and positions; those without effect).

    A bias of the keys adds the same number to all scores of a query, so it has no effect.
    """
    tensors: list[Tensor] = []
    zeros: dict[str, Shape] = {}

    def dense(path: str, name: str) -> None:
        tensors.append(Tensor(f"{path}/kernel", (f"{name}.weight",), TRANSPOSED))
        if path.endswith("/key"):
            zeros[f"{name}.bias"] = (model.d_model,)
        else:
            tensors.append(Tensor(f"{path}/bias", (f"{name}.bias",)))

    def norm(path: str, name: str) -> None:
        tensors.append(Tensor(f"{path}/scale", (f"{name}.weight",)))
        tensors.append(Tensor(f"{path}/bias", (f"{name}.bias",)))

    for side, stack in (("encoder", model.encoder), ("decoder", model.decoder)):
        for i in range(stack.num_layers):
            block, layer = f"{side}/blocks_{i}", f"model.{side}.layers.{i}"
            attentions = {"mixer": "self_attn"}
            if side == "decoder":
                attentions["cross"] = "encoder_attn"
            for ours, theirs in attentions.items():
                for projection, proj in _PROJECTIONS.items():
                    dense(f"{block}/{ours}/heads/{projection}", f"{layer}.{theirs}.{proj}")
                norm(f"{block}/{ours}_residual/norm", f"{layer}.{theirs}_layer_norm")
            dense(f"{block}/feed_forward/up", f"{layer}.fc1")
            dense(f"{block}/feed_forward/down", f"{layer}.fc2")
            norm(f"{block}/feed_forward_residual/norm", f"{layer}.final_layer_norm")
        if model.embedding_norm:
            norm(f"{side}/first_norm", f"model.{side}.layernorm_embedding")
        if model.norm_placement == "pre":
            norm(f"{side}/last_norm", f"model.{side}.layer_norm")
    return tensors, zeros
