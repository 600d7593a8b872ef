"""mBART-50 (Tang et al. 2020, arXiv:2008.00401).

A pre-norm model with a norm of its own on the embeddings, learned positions, and a bias of the
logits. (mBART-25 puts its language tokens at the end of a source and is refused.)
"""

from collections.abc import Sequence
from typing import Any

from transformer_jax.interop.families.bart_layout import (
    EMBEDDINGS,
    bart_config,
    bart_layers,
    output_bias,
)
from transformer_jax.interop.families.base import (
    Languages,
    Layout,
    ModelFolder,
    Published,
)
from transformer_jax.interop.families.language_tokens import (
    fairseq_ids,
    is_language,
    with_language_tokens,
)
from transformer_jax.interop.settings import Settings
from transformer_jax.interop.tables import Change, Table, Tensor, after_first_rows, chain, scaled
from transformer_jax.interop.vocabularies import Arrangement
from transformer_jax.models.config import ModelConfig
from transformer_jax.positions.learned import Learned

#: Keys of older `config.json`, which other models of this layout set otherwise.
_FIXED = {
    "add_final_layer_norm": True,
    "normalize_before": True,
    "normalize_embedding": True,
    "static_position_embeddings": False,
}
#: "": the file does not say. `MBartTokenizer` is that of mBART-25.
_TOKENIZERS = {"": None, "MBart50Tokenizer": None, "MBart50TokenizerFast": None}


def _positions(d_model: int) -> Change:
    """Their table has two rows before the first position; ours is scaled by sqrt(D) when read.

    The scale is a power of two for the published D of 1024, so that nothing is rounded.
    """
    return chain(after_first_rows(2), scaled(d_model**-0.5))


def _model(config: Settings, **vocabulary: Any) -> ModelConfig:
    return bart_config(
        config,
        position=Learned(),
        norm_placement="pre",
        embedding_norm=True,
        output_bias=True,
        **vocabulary,
    )


def _table(model: ModelConfig, tensors: Sequence[Tensor], target: Arrangement) -> Table:
    layers, zeros = bart_layers(model)
    positions = [
        Tensor(
            f"{stack}/position/table",
            (f"model.{stack}.embed_positions.weight",),
            _positions(model.d_model),
        )
        for stack in ("encoder", "decoder")
    ]
    return Table([*tensors, *layers, output_bias(target), *positions], zeros)


def mbart(folder: ModelFolder, languages: Languages) -> Published:
    """A folder of `MBartForConditionalGeneration` with the tokens of mBART-50."""
    folder.config.need(_FIXED)
    folder.settings("tokenizer_config.json").choose("tokenizer_class", _TOKENIZERS, "")
    ids = fairseq_ids(folder)
    tags = {piece: piece for piece in ids if is_language(piece)}
    arrangement, tokenizers, codes = with_language_tokens(folder, languages, ids, tags)
    model, table = Layout(EMBEDDINGS, _model, _table).read(folder, arrangement, arrangement, ids)
    return Published(model, table, tokenizers, codes)
