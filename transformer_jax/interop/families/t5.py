"""T5 (Raffel et al. 2020, arXiv:1910.10683), mT5, Flan-T5 and MADLAD-400.

Pre-norm models with RMSNorm, no biases, unscaled scores with T5's relative bias, and embeddings
that are read without a scale. In the first T5 the projection to logits is the embedding, times
1 / sqrt(D); later ones have a projection of their own and gated feed-forward networks.
"""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from transformer_jax.data.tokenizer import load_processor
from transformer_jax.interop.families.base import (
    EmbeddingNames,
    Languages,
    ModelFolder,
    Published,
    WritableLayout,
    make_tokenizers,
)
from transformer_jax.interop.settings import Settings
from transformer_jax.interop.tables import TRANSPOSED, Table, Tensor
from transformer_jax.interop.vocabularies import Arrangement, arrange, vocabulary
from transformer_jax.layers.feed_forward import FeedForwardConfig, Glu, Mlp
from transformer_jax.layers.norms import RMSNorm
from transformer_jax.mixers.full_attention import Full, FullCross
from transformer_jax.models.config import ModelConfig, StackConfig
from transformer_jax.positions.t5 import T5

SENTENCEPIECE = ("spiece.model", "sentencepiece.model")

_EMBEDDINGS = EmbeddingNames(
    ("shared.weight", "encoder.embed_tokens.weight"),
    ("shared.weight", "decoder.embed_tokens.weight"),
    ("lm_head.weight",),
)

_FEED_FORWARDS: dict[str, Mlp | Glu] = {
    "relu": Mlp(activation="relu", use_bias=False),
    "gated-gelu": Glu(activation="gelu_tanh"),
    "gated-silu": Glu(activation="silu"),
    "gated-relu": Glu(activation="relu"),
}

_HEADS = {"query": "q", "key": "k", "value": "v", "out": "o"}


def t5(folder: ModelFolder, languages: Languages) -> Published:
    """A folder of `T5ForConditionalGeneration` or `MT5ForConditionalGeneration`."""
    config = folder.config
    size = config.number("vocab_size")
    ids, extra = _pieces(folder, size)
    arrangement = arrange(
        size,
        pad=config.get("pad_token_id", int),
        bos=None,
        eos=config.get("eos_token_id", int),
        unk=ids["<unk>"],
        origin=config.origin,
    )
    (output,) = _EMBEDDINGS.output
    if output not in folder.weights and not config.get("tie_word_embeddings", bool, True):
        folder.weights.take(output)  # missing, says the config
    model, table = LAYOUT.read(folder, arrangement, arrangement, ids, start=0)
    side = folder.content(*SENTENCEPIECE), vocabulary(arrangement, ids, hidden=extra)
    return Published(model, table, make_tokenizers(side, side), languages)


def _pieces(folder: ModelFolder, size: int) -> tuple[dict[str, int], list[str]]:
    """(id of each piece; the sentinels `<extra_id_0>` ..., which have the highest ids)."""
    model = load_processor(folder.content(*SENTENCEPIECE), str(folder.path / SENTENCEPIECE[0]))
    own = model.vocab_size()
    ids = {model.id_to_piece(i): i for i in range(own)}
    ids["<unk>"] = model.unk_id()
    settings = folder.settings("tokenizer_config.json")
    count = settings.get("extra_ids", int, min(100, size - own))
    extra = [f"<extra_id_{i}>" for i in range(count) if f"<extra_id_{i}>" not in ids]
    ids |= {piece: own + len(extra) - 1 - i for i, piece in enumerate(extra)}
    return ids, extra


def _feed_forward(config: Settings) -> FeedForwardConfig:
    rate = config.get("dropout_rate", float, 0.1)
    return replace(config.choose("feed_forward_proj", _FEED_FORWARDS, "relu"), dropout_rate=rate)


def _model(config: Settings, *, tie_embeddings: str, **vocabulary: Any) -> ModelConfig:
    tied = tie_embeddings in ("all", "decoder")
    scaled_logits = config.get("scale_decoder_outputs", bool, tied)
    d_model, rate = config.number("d_model"), config.get("dropout_rate", float, 0.1)
    attention = {"use_bias": False, "score_scale": 1.0, "dropout_rate": rate}
    mixer = Full(**attention)  # type: ignore[arg-type]
    position = T5(
        num_buckets=config.number("relative_attention_num_buckets", 32),
        max_distance=config.number("relative_attention_max_distance", 128),
        multiplier=1.0,
    )
    layers = config.number("num_layers")

    def stack(num_layers: int) -> StackConfig:
        return StackConfig(num_layers=num_layers, mixers=(mixer,), position=position)

    return ModelConfig(
        d_model=d_model,
        d_ff=config.number("d_ff"),
        num_heads=config.number("num_heads"),
        head_dim=config.number("d_kv"),
        encoder=stack(layers),
        decoder=stack(config.number("num_decoder_layers", layers)),
        cross=FullCross(**attention),  # type: ignore[arg-type]
        norm=RMSNorm(epsilon=config.get("layer_norm_epsilon", float, 1e-6)),
        norm_placement="pre",
        feed_forward=_feed_forward(config),
        embedding_scale=1.0,
        logit_scale=d_model**-0.5 if scaled_logits else 1.0,
        dropout_rate=rate,
        max_length=config.number("n_positions", 512),
        tie_embeddings=tie_embeddings,  # type: ignore[arg-type]
        **vocabulary,
    )


def _table(model: ModelConfig, tensors: Sequence[Tensor], target: Arrangement) -> Table:
    # A bias of the distances in cross-attention is in the first files and never read.
    name = "decoder.block.0.layer.1.EncDecAttention.relative_attention_bias.weight"
    return Table([*tensors, *_layers(model)], zeros={}, ignored=[name])


def _keys(model: ModelConfig) -> dict[str, Any]:
    """The keys of `config.json` of the most similar model that `_model` gives."""
    rate = getattr(model.feed_forward, "dropout_rate", 0.0)
    same = [
        name
        for name, ours in _FEED_FORWARDS.items()
        if replace(ours, dropout_rate=rate) == model.feed_forward
    ]
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
        "feed_forward_proj": (same or ["relu"])[0],
        "layer_norm_epsilon": model.norm.epsilon,
        "dropout_rate": model.dropout_rate,
        "n_positions": model.max_length,
        "tie_word_embeddings": model.tie_embeddings == "all",
    }


LAYOUT = WritableLayout(
    _EMBEDDINGS,
    _model,
    _table,
    "T5ForConditionalGeneration",
    _keys,
    {"all": ["shared.weight"], "inputs": ["shared.weight", "lm_head.weight"]},
)


def _layers(model: ModelConfig) -> list[Tensor]:
    """The tensors of both stacks."""
    tensors = []
    gated = isinstance(model.feed_forward, Glu)
    dense = {"gate": "wi_0", "up": "wi_1"} if gated else {"up": "wi"}
    for side, stack in (("encoder", model.encoder), ("decoder", model.decoder)):
        for i in range(stack.num_layers):
            block, layer = f"{side}/blocks_{i}", f"{side}.block.{i}.layer"
            sublayers = [("mixer", "SelfAttention")]
            if side == "decoder":
                sublayers.append(("cross", "EncDecAttention"))
            for number, (ours, theirs) in enumerate(sublayers):
                for part, name in _HEADS.items():
                    path = f"{block}/{ours}/heads/{part}/kernel"
                    name = f"{layer}.{number}.{theirs}.{name}.weight"
                    tensors.append(Tensor(path, (name,), TRANSPOSED))
                norm = f"{layer}.{number}.layer_norm.weight"
                tensors.append(Tensor(f"{block}/{ours}_residual/norm/scale", (norm,)))
            last = f"{layer}.{len(sublayers)}"
            for part, name in (dense | {"down": "wo"}).items():
                path = f"{block}/feed_forward/{part}/kernel"
                name = f"{last}.DenseReluDense.{name}.weight"
                tensors.append(Tensor(path, (name,), TRANSPOSED))
            norm = f"{last}.layer_norm.weight"
            tensors.append(Tensor(f"{block}/feed_forward_residual/norm/scale", (norm,)))
        table = f"{side}.block.0.layer.0.SelfAttention.relative_attention_bias.weight"
        tensors.append(Tensor(f"{side}/position/table", (table,)))
        tensors.append(Tensor(f"{side}/last_norm/scale", (f"{side}.final_layer_norm.weight",)))
    return tensors
