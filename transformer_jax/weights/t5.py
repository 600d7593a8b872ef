"""The layout of T5 (Raffel et al. 2020, arXiv:1910.10683), mT5, Flan-T5, MADLAD-400 and MetricX.

Pre-norm models with RMSNorm, no biases, unscaled scores with T5's relative bias, and embeddings
that are read without a scale. In the first T5 the projection to logits is the embedding, times
1 / sqrt(D); later ones have a projection of their own and gated feed-forward networks.
"""

from dataclasses import replace
from typing import Any

from transformer_jax.layers.feed_forward import Glu, Mlp
from transformer_jax.layers.norms import RMSNorm
from transformer_jax.mixers.full_attention import Full, FullCross
from transformer_jax.models.config import ModelConfig, StackConfig
from transformer_jax.positions.t5 import T5
from transformer_jax.weights.arrangement import Arrangement
from transformer_jax.weights.layout import Layout
from transformer_jax.weights.settings import Settings
from transformer_jax.weights.tables import TRANSPOSED, Table, Tensor

SENTENCEPIECE = ("spiece.model", "sentencepiece.model")

_FEED_FORWARDS: dict[str, Mlp | Glu] = {
    "relu": Mlp(activation="relu", use_bias=False),
    "gated-gelu": Glu(activation="gelu_tanh"),
    "gated-silu": Glu(activation="silu"),
    "gated-relu": Glu(activation="relu"),
}

_ATTENTIONS = {"mixer": "SelfAttention", "cross": "EncDecAttention"}
_HEADS = {"query": "q", "key": "k", "value": "v", "out": "o"}


class T5Layout(Layout):
    """T5's names and keys."""

    def model(self, config: Settings, **vocabulary: Any) -> ModelConfig:
        d_model, rate = config.number("d_model"), config.get("dropout_rate", float, 0.1)
        attention: Any = {"use_bias": False, "score_scale": 1.0, "dropout_rate": rate}
        position = T5(
            num_buckets=config.number("relative_attention_num_buckets", 32),
            max_distance=config.number("relative_attention_max_distance", 128),
            multiplier=1.0,
        )
        layers = config.number("num_layers")
        encoder, decoder = (
            StackConfig(num_layers=count, mixers=(Full(**attention),), position=position)
            for count in (layers, config.number("num_decoder_layers", layers))
        )
        tied = vocabulary["tie_embeddings"] in ("all", "decoder")
        scaled_logits = config.get("scale_decoder_outputs", bool, tied)
        feed_forward = config.choose("feed_forward_proj", _FEED_FORWARDS, "relu")
        return ModelConfig(
            d_model=d_model,
            d_ff=config.number("d_ff"),
            num_heads=config.number("num_heads"),
            head_dim=config.number("d_kv"),
            encoder=encoder,
            decoder=decoder,
            cross=FullCross(**attention),
            norm=RMSNorm(epsilon=config.get("layer_norm_epsilon", float, 1e-6)),
            norm_placement="pre",
            feed_forward=replace(feed_forward, dropout_rate=rate),
            embedding_scale=1.0,
            logit_scale=d_model**-0.5 if scaled_logits else 1.0,
            dropout_rate=rate,
            max_length=config.number("n_positions", 512),
            **vocabulary,
        )

    def keys(self, model: ModelConfig) -> dict[str, Any]:
        rate = getattr(model.feed_forward, "dropout_rate", 0.0)
        names: dict[Any, str] = {
            replace(ours, dropout_rate=rate): name for name, ours in _FEED_FORWARDS.items()
        }
        position = model.encoder.position
        buckets = position if isinstance(position, T5) else T5()
        return {
            "d_model": model.d_model,
            "d_kv": model.head_dim or model.d_model // model.num_heads,
            "d_ff": model.d_ff,
            "num_layers": model.encoder.num_layers,
            "num_decoder_layers": model.decoder.num_layers,
            "num_heads": model.num_heads,
            "relative_attention_num_buckets": buckets.num_buckets,
            "relative_attention_max_distance": buckets.max_distance,
            "feed_forward_proj": names.get(model.feed_forward, "relu"),
            "layer_norm_epsilon": model.norm.epsilon,
            "dropout_rate": model.dropout_rate,
            "n_positions": model.max_length,
            "tie_word_embeddings": model.tie_embeddings == "all",
        }

    def table(self, model: ModelConfig, source: Arrangement, target: Arrangement) -> Table:
        tensors = self.embeddings(model.tie_embeddings, source, target)

        def dense(path: str, name: str) -> None:
            tensors.append(Tensor(f"{path}/kernel", (f"{name}.weight",), TRANSPOSED))

        def same(path: str, name: str) -> None:
            tensors.append(Tensor(path, (f"{name}.weight",)))

        gated = isinstance(model.feed_forward, Glu)
        maps = {"gate": "wi_0", "up": "wi_1"} if gated else {"up": "wi"}
        for side, stack in (("encoder", model.encoder), ("decoder", model.decoder)):
            sublayers = ["mixer", "cross"] if side == "decoder" else ["mixer"]
            for i in range(stack.num_layers):
                block, layer = f"{side}/blocks_{i}", f"{side}.block.{i}.layer"
                for number, ours in enumerate(sublayers):
                    theirs = f"{layer}.{number}.{_ATTENTIONS[ours]}"
                    for part, name in _HEADS.items():
                        dense(f"{block}/{ours}/heads/{part}", f"{theirs}.{name}")
                    same(f"{block}/{ours}_residual/norm/scale", f"{layer}.{number}.layer_norm")
                last = f"{layer}.{len(sublayers)}"
                for part, name in (maps | {"down": "wo"}).items():
                    dense(f"{block}/feed_forward/{part}", f"{last}.DenseReluDense.{name}")
                same(f"{block}/feed_forward_residual/norm/scale", f"{last}.layer_norm")
            biases = f"{side}.block.0.layer.0.SelfAttention.relative_attention_bias"
            same(f"{side}/position/table", biases)
            same(f"{side}/last_norm/scale", f"{side}.final_layer_norm")
        # A bias of the distances in cross-attention is in the first files and never read.
        unread = "decoder.block.0.layer.1.EncDecAttention.relative_attention_bias.weight"
        return Table(tensors, zeros={}, ignored=[unread])


LAYOUT = T5Layout(architecture="T5ForConditionalGeneration", ties=("all", "inputs"))
