"""Marian, the models of OPUS-MT (Junczys-Dowmunt et al. 2018, arXiv:1804.00344).

The paper's model with another layout of its sinusoids, a bias of the logits, and one vocabulary
for both languages or one for each. The decoder starts with the padding piece, whose embedding is
zero and which is never predicted. A multilingual model reads the target language from a tag at
the start of the source, `>>deu<<`, which is an ordinary piece of its vocabulary.
"""

from transformer_jax.formats.family import Languages, Published, make_tokenizers
from transformer_jax.formats.transformers.bart_layout import BartLayout
from transformer_jax.formats.vocabularies import vocabulary
from transformer_jax.positions.sinusoidal import Sinusoidal
from transformer_jax.weights.layout import ModelFolder

#: Keys of older `config.json` that say how a model of the family differs from the others.
_FIXED = {
    "add_final_layer_norm": False,
    "extra_pos_embeddings": 0,
    "normalize_before": False,
    "normalize_embedding": False,
    "static_position_embeddings": True,
}

LAYOUT = BartLayout(
    architecture="MarianMTModel",
    ties=("all", "decoder"),
    position=Sinusoidal(form="halves"),
    norm_placement="post",
    output_bias=True,
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
    pad = config.get("pad_token_id", int)
    source, target = (
        folder.arrange(ids, size, pad=ids.get("<pad>"))
        for ids, size in ((source_ids, source_size), (target_ids, target_size))
    )
    folder.check_added(source_ids | target_ids)
    model, table = LAYOUT.read(folder, source, target, target_ids, start=pad)
    return Published(
        model,
        table,
        make_tokenizers(
            (folder.content("source.spm"), vocabulary(source, source_ids, marked_tags=True)),
            (folder.content("target.spm"), vocabulary(target, target_ids, marked_tags=True)),
        ),
        languages.or_of(tokenizer, "source_lang", "target_lang"),
    )
