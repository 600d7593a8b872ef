"""The layers that Marian, M2M100 and mBART share in Transformers: names, and the config's keys."""

from dataclasses import dataclass
from typing import Any, Literal

from transformer_jax.layers.feed_forward import Activation, Mlp
from transformer_jax.layers.norms import LayerNorm
from transformer_jax.mixers.full_attention import Full, FullCross
from transformer_jax.models.config import ModelConfig, StackConfig
from transformer_jax.positions.base import PositionConfig
from transformer_jax.positions.learned import Learned
from transformer_jax.weights.arrangement import Arrangement
from transformer_jax.weights.layout import Layout
from transformer_jax.weights.settings import Settings
from transformer_jax.weights.tables import (
    AS_ROW,
    TRANSPOSED,
    Shape,
    Table,
    Tensor,
    after_first_rows,
    chain,
    rows,
    scaled,
)

#: Transformers' names of activations.
ACTIVATIONS: dict[str, Activation] = {
    "relu": "relu",
    "gelu": "gelu",
    "gelu_new": "gelu_tanh",
    "silu": "silu",
    "swish": "silu",
}

#: Our projections and theirs.
_PROJECTIONS = {"query": "q_proj", "key": "k_proj", "value": "v_proj", "out": "out_proj"}


@dataclass(frozen=True, kw_only=True)
class BartLayout(Layout):
    """How the families differ."""

    prefix: str = "model."
    position: PositionConfig
    norm_placement: Literal["pre", "post"]
    embedding_norm: bool = False
    output_bias: bool = False

    def model(self, config: Settings, **vocabulary: Any) -> ModelConfig:
        for ours in ("ffn_dim", "attention_heads"):
            config.number(f"decoder_{ours}")  # is there
            config.need({f"decoder_{ours}": config.number(f"encoder_{ours}")})
        attention = Full(dropout_rate=config.get("attention_dropout", float, 0.0))
        encoder, decoder = (
            StackConfig(config.number(f"{side}_layers"), (attention,), self.position)
            for side in ("encoder", "decoder")
        )
        return ModelConfig(
            d_model=config.number("d_model"),
            d_ff=config.number("encoder_ffn_dim"),
            num_heads=config.number("encoder_attention_heads"),
            encoder=encoder,
            decoder=decoder,
            cross=FullCross(dropout_rate=attention.dropout_rate),
            norm=LayerNorm(epsilon=1e-5),
            norm_placement=self.norm_placement,
            feed_forward=Mlp(
                activation=config.choose("activation_function", ACTIVATIONS),
                dropout_rate=config.get("activation_dropout", float, 0.0),
            ),
            embedding_scale=None if config.get("scale_embedding", bool, False) else 1.0,
            embedding_norm=self.embedding_norm,
            output_bias=self.output_bias,
            dropout_rate=config.get("dropout", float, 0.0),
            max_length=config.number("max_position_embeddings"),
            **vocabulary,
        )

    def keys(self, model: ModelConfig) -> dict[str, Any]:
        keys: dict[str, Any] = {}
        for side, stack in (("encoder", model.encoder), ("decoder", model.decoder)):
            keys |= {
                f"{side}_layers": stack.num_layers,
                f"{side}_attention_heads": model.num_heads,
                f"{side}_ffn_dim": model.d_ff,
            }
        if "decoder" in self.ties:
            keys["share_encoder_decoder_embeddings"] = model.tie_embeddings == "all"
        theirs: dict[str, str] = {ours: name for name, ours in ACTIVATIONS.items()}
        activation = getattr(model.feed_forward, "activation", "")
        return keys | {
            "d_model": model.d_model,
            "activation_function": theirs.get(activation, "relu"),
            "scale_embedding": model.embedding_scale != 1.0,
            "dropout": model.dropout_rate,
            "attention_dropout": getattr(model.cross, "dropout_rate", 0.0),
            "activation_dropout": getattr(model.feed_forward, "dropout_rate", 0.0),
            "max_position_embeddings": model.max_length,
        }

    def table(self, model: ModelConfig, source: Arrangement, target: Arrangement) -> Table:
        tensors = self.embeddings(model.tie_embeddings, source, target)
        zeros: dict[str, Shape] = {}
        ignored: list[str] = []

        def dense(path: str, name: str) -> None:
            tensors.append(Tensor(f"{path}/kernel", (f"{name}.weight",), TRANSPOSED))
            # A bias of the keys adds the same number to all scores of a query: no effect.
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
            if self.embedding_norm:
                norm(f"{side}/first_norm", f"model.{side}.layernorm_embedding")
            if self.norm_placement == "pre":
                norm(f"{side}/last_norm", f"model.{side}.layer_norm")
            positions = f"model.{side}.embed_positions.weight"
            if isinstance(self.position, Learned):
                # Two rows are before the first position. Ours is scaled by sqrt(D) when read: a
                # power of two for the published D of 1024, so that nothing is rounded.
                change = chain(after_first_rows(2), scaled(model.d_model**-0.5))
                tensors.append(Tensor(f"{side}/position/table", (positions,), change))
            else:
                ignored += [positions, f"{positions}s"]
        if self.output_bias:
            change = chain(AS_ROW, rows(target.order))
            tensors.append(Tensor("output_bias/bias", ("final_logits_bias",), change))
        return Table(tensors, zeros, ignored)
