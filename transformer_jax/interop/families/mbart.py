"""mBART-50 (Tang et al. 2020, arXiv:2008.00401).

A pre-norm model with a norm of its own on the embeddings, learned positions, and a bias of the
logits. (mBART-25 puts its language tokens at the end of a source and is refused.)
"""

from transformer_jax.interop.families.bart_layout import EMBEDDINGS, bart_config, bart_layers
from transformer_jax.interop.families.base import (
    Languages,
    ModelFolder,
    Published,
    embeddings,
    never_predicted,
)
from transformer_jax.interop.families.language_tokens import (
    fairseq_ids,
    is_language,
    with_language_tokens,
)
from transformer_jax.interop.settings import Settings
from transformer_jax.interop.tables import (
    AS_ROW,
    Change,
    Table,
    Tensor,
    after_first_rows,
    chain,
    rows,
    scaled,
)
from transformer_jax.interop.vocabularies import unused
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


def mbart(folder: ModelFolder, languages: Languages) -> Published:
    """A folder of `MBartForConditionalGeneration` with the tokens of mBART-50."""
    config = folder.config
    for key, value in _FIXED.items():
        config.need(key, value)
    path = folder.path / "tokenizer_config.json"
    Settings(str(path), folder.json(path.name)).choose("tokenizer_class", _TOKENIZERS, "")
    size = config.number("vocab_size")
    ids = fairseq_ids(folder)
    tags = {piece: piece for piece in ids if is_language(piece)}
    arrangement, tokenizers, codes = with_language_tokens(folder, languages, ids, tags, size)
    tie, tensors = embeddings(
        folder.weights,
        (arrangement, EMBEDDINGS.source),
        (arrangement, EMBEDDINGS.target),
        EMBEDDINGS.output,
    )
    model = bart_config(
        config,
        position=Learned(),
        norm_placement="pre",
        source_vocab_size=size,
        target_vocab_size=size,
        tie_embeddings=tie,
        embedding_norm=True,
        output_bias=True,
        start_id=arrangement.ours(config.get("decoder_start_token_id", int)),
        unused_ids=unused(arrangement, ids, never_predicted(folder.generation)),
    )
    layers, zeros = bart_layers(model)
    change = chain(AS_ROW, rows(arrangement.order))
    rest = [Tensor("output_bias/bias", ("final_logits_bias",), change)]
    for stack in ("encoder", "decoder"):
        name = f"model.{stack}.embed_positions.weight"
        rest.append(Tensor(f"{stack}/position/table", (name,), _positions(model.d_model)))
    return Published(model, Table([*tensors, *layers, *rest], zeros), tokenizers, codes)
