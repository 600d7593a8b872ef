"""mBART-50 (Tang et al. 2020, arXiv:2008.00401).

A pre-norm model with a norm of its own on the embeddings, learned positions, and a bias of the
logits. (mBART-25 puts its language tokens at the end of a source and is refused.)
"""

from transformer_jax.formats.family import Languages, Published
from transformer_jax.formats.transformers.bart_layout import BartLayout
from transformer_jax.formats.transformers.language_tokens import (
    fairseq_ids,
    is_language,
    read_with_language_tokens,
)
from transformer_jax.positions.learned import Learned
from transformer_jax.weights.layout import ModelFolder

#: Keys of older `config.json`, which other models of this layout set otherwise.
_FIXED = {
    "add_final_layer_norm": True,
    "normalize_before": True,
    "normalize_embedding": True,
    "static_position_embeddings": False,
}
#: "": the file does not say. `MBartTokenizer` is that of mBART-25.
_TOKENIZERS = {"": None, "MBart50Tokenizer": None, "MBart50TokenizerFast": None}

LAYOUT = BartLayout(
    architecture="MBartForConditionalGeneration",
    position=Learned(),
    norm_placement="pre",
    embedding_norm=True,
    output_bias=True,
)


def mbart(folder: ModelFolder, languages: Languages) -> Published:
    """A folder of `MBartForConditionalGeneration` with the tokens of mBART-50."""
    folder.config.need(_FIXED)
    folder.settings("tokenizer_config.json").choose("tokenizer_class", _TOKENIZERS, "")
    ids = fairseq_ids(folder)
    tags = {piece: piece for piece in ids if is_language(piece)}
    return read_with_language_tokens(LAYOUT, folder, languages, ids, tags)
