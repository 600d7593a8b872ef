"""Marian, the models of OPUS-MT (Junczys-Dowmunt et al. 2018, arXiv:1804.00344).

The paper's model with another layout of its sinusoids, a bias of the logits, and one vocabulary
for both languages or one for each. The decoder starts with the padding piece, whose embedding is
zero and which is never predicted. A multilingual model reads the target language from a tag at
the start of the source, `>>deu<<`, which is an ordinary piece of its vocabulary.
"""

from collections.abc import Sequence
from typing import Any

from transformer_jax.errors import UserError
from transformer_jax.interop.families.bart_layout import (
    EMBEDDINGS,
    bart_config,
    bart_keys,
    bart_layers,
    output_bias,
)
from transformer_jax.interop.families.base import (
    Languages,
    ModelFolder,
    Published,
    WritableLayout,
    make_tokenizers,
)
from transformer_jax.interop.settings import Settings
from transformer_jax.interop.tables import Table, Tensor
from transformer_jax.interop.vocabularies import Arrangement, arrange, vocabulary
from transformer_jax.models.config import ModelConfig
from transformer_jax.positions.sinusoidal import Sinusoidal

#: Keys of older `config.json` that say how a model of the family differs from the others.
_FIXED = {
    "add_final_layer_norm": False,
    "extra_pos_embeddings": 0,
    "normalize_before": False,
    "normalize_embedding": False,
    "static_position_embeddings": True,
}


#: Positions, and the epsilon of norms: Transformers computes others than Marian itself.
_COMPUTED = {
    "transformers": (Sinusoidal(form="halves"), 1e-5),
    "marian": (Sinusoidal(form="tensor2tensor"), 1e-6),
}


def _model(config: Settings, **vocabulary: Any) -> ModelConfig:
    position, epsilon = config.choose("computes_as", _COMPUTED, "transformers")
    return bart_config(
        config,
        position=position,
        epsilon=epsilon,
        norm_placement="post",
        output_bias=True,
        **vocabulary,
    )


def _table(model: ModelConfig, tensors: Sequence[Tensor], target: Arrangement) -> Table:
    layers, zeros = bart_layers(model)
    ignored = [f"model.{stack}.embed_positions.weight" for stack in ("encoder", "decoder")]
    return Table([*tensors, *layers, output_bias(target)], zeros, ignored)


def _keys(model: ModelConfig) -> dict[str, Any]:
    return bart_keys(model) | {"share_encoder_decoder_embeddings": model.tie_embeddings == "all"}


LAYOUT = WritableLayout(
    EMBEDDINGS,
    _model,
    _table,
    "MarianMTModel",
    _keys,
    {
        "all": ["model.shared.weight"],
        "decoder": ["model.encoder.embed_tokens.weight", "model.decoder.embed_tokens.weight"],
    },
)


def marian(folder: ModelFolder, languages: Languages) -> Published:
    """A folder of `MarianMTModel`."""
    config = folder.config
    config.need(_FIXED)
    tokenizer = folder.settings("tokenizer_config.json")
    separate = tokenizer.get("separate_vocabs", bool, False)
    source_ids = folder.piece_ids("vocab.json")
    target_ids = folder.piece_ids("target_vocab.json") if separate else source_ids
    source_size = config.number("vocab_size")
    target_size = config.number("decoder_vocab_size", source_size) if separate else source_size
    pad, eos = config.get("pad_token_id", int), config.get("eos_token_id", int)

    def arranged(ids: dict[str, int], size: int, origin: str) -> Arrangement:
        if max(ids.values()) >= size:
            raise UserError(f"{origin}: has ids up to {max(ids.values())}, the model {size} pieces")
        if "<unk>" not in ids:
            raise UserError(f"{origin}: has no piece <unk>")
        own_pad = ids.get("<pad>", pad)
        return arrange(size, pad=own_pad, eos=eos, unk=ids["<unk>"], bos=None, origin=origin)

    source = arranged(source_ids, source_size, str(folder.path / "vocab.json"))
    target = source
    if separate:
        target = arranged(target_ids, target_size, str(folder.path / "target_vocab.json"))
    model, table = LAYOUT.read(folder, source, target, target_ids, start=pad)
    return Published(
        model,
        table,
        make_tokenizers(
            (folder.content("source.spm"), vocabulary(source, source_ids, marked_tags=True)),
            (folder.content("target.spm"), vocabulary(target, target_ids, marked_tags=True)),
        ),
        Languages(
            languages.source or tokenizer.get("source_lang", str, None),
            languages.target or tokenizer.get("target_lang", str, None),
        ),
    )
