"""T5 (Raffel et al. 2020, arXiv:1910.10683), mT5, Flan-T5 and MADLAD-400; see `weights/t5.py`."""

from transformer_jax.formats.family import Languages, Published, make_tokenizers
from transformer_jax.formats.vocabularies import vocabulary
from transformer_jax.weights.layout import PROJECTION, ModelFolder
from transformer_jax.weights.sentencepiece_model import load_processor
from transformer_jax.weights.t5 import LAYOUT, SENTENCEPIECE


def t5(folder: ModelFolder, languages: Languages) -> Published:
    """A folder of `T5ForConditionalGeneration` or `MT5ForConditionalGeneration`."""
    config = folder.config
    size = config.number("vocab_size")
    content = folder.content(*SENTENCEPIECE)
    pieces = load_processor(content, str(folder.path / SENTENCEPIECE[0]))
    own = pieces.vocab_size()
    ids = {pieces.id_to_piece(i): i for i in range(own)}
    ids["<unk>"] = pieces.unk_id()
    # The sentinels `<extra_id_0>` ... have the highest ids.
    count = folder.settings("tokenizer_config.json").get("extra_ids", int, min(100, size - own))
    extra = [f"<extra_id_{i}>" for i in range(count) if f"<extra_id_{i}>" not in ids]
    ids |= {piece: own + len(extra) - 1 - i for i, piece in enumerate(extra)}
    arrangement = folder.arrange(ids, size)
    if PROJECTION not in folder.weights and not config.get("tie_word_embeddings", bool, True):
        folder.weights.take(PROJECTION)  # missing, says the config
    folder.check_added(ids)
    model, table = LAYOUT.read(folder, arrangement, arrangement, ids, start=0)
    side = content, vocabulary(arrangement, ids, hidden=extra)
    return Published(model, table, make_tokenizers(side, side), languages)
