"""M2M100 (Fan et al. 2020, arXiv:2010.11125) and NLLB-200 (arXiv:2207.04672).

Pre-norm models with Tensor2Tensor's sinusoids, counted from 2, and one vocabulary for all
languages. The two differ in what numbers the pieces: `vocab.json`, or SentencePiece itself.
"""

from collections.abc import Sequence
from typing import Any

from transformer_jax.errors import UserError
from transformer_jax.interop.families.bart_layout import (
    EMBEDDINGS,
    bart_config,
    bart_keys,
    bart_layers,
)
from transformer_jax.interop.families.base import (
    Languages,
    ModelFolder,
    Published,
    WritableLayout,
)
from transformer_jax.interop.families.language_tokens import (
    fairseq_ids,
    is_language,
    with_language_tokens,
)
from transformer_jax.interop.settings import Settings
from transformer_jax.interop.tables import Table, Tensor
from transformer_jax.interop.vocabularies import Arrangement
from transformer_jax.models.config import ModelConfig
from transformer_jax.positions.sinusoidal import Sinusoidal

#: The languages of M2M100 in the order of their tokens, which no published file lists with ids.
_LANGUAGES = {
    "m2m100": (
        "af am ar ast az ba be bg bn br bs ca ceb cs cy da de el en es et fa ff fi fr fy ga gd gl "
        "gu ha he hi hr ht hu hy id ig ilo is it ja jv ka kk km kn ko lb lg ln lo lt lv mg mk ml "
        "mn mr ms my ne nl no ns oc or pa pl ps pt ro ru sd si sk sl so sq sr ss su sv sw ta th "
        "tl tn tr uk ur uz vi wo xh yi yo zh zu"
    ),
    "wmt21": "en ha is ja cs ru zh de",
}


def _pieces(folder: ModelFolder) -> tuple[dict[str, int], dict[str, str]]:
    """(id of each piece, token of each language)."""
    if not (folder.path / "vocab.json").is_file():
        ids = fairseq_ids(folder)
        return ids, {piece: piece for piece in ids if is_language(piece)}
    ids = folder.piece_ids("vocab.json")
    if "<unk>" not in ids:
        raise UserError(f"{folder.path / 'vocab.json'}: has no piece <unk>")
    settings = folder.settings("tokenizer_config.json")
    codes = settings.choose("language_codes", _LANGUAGES, "m2m100")
    tags = {code: f"__{code}__" for code in codes.split()}
    return ids | {tag: len(ids) + i for i, tag in enumerate(tags.values())}, tags


def _model(config: Settings, **vocabulary: Any) -> ModelConfig:
    position = Sinusoidal(form="tensor2tensor", first=2)
    return bart_config(config, position=position, norm_placement="pre", **vocabulary)


def _table(model: ModelConfig, tensors: Sequence[Tensor], target: Arrangement) -> Table:
    layers, zeros = bart_layers(model)
    ignored = [f"model.{stack}.embed_positions.weights" for stack in ("encoder", "decoder")]
    return Table([*tensors, *layers], zeros, ignored)


LAYOUT = WritableLayout(
    EMBEDDINGS,
    _model,
    _table,
    "M2M100ForConditionalGeneration",
    bart_keys,
    {"all": ["model.shared.weight"]},
)


def m2m100(folder: ModelFolder, languages: Languages) -> Published:
    """A folder of `M2M100ForConditionalGeneration`."""
    ids, tags = _pieces(folder)
    arrangement, tokenizers, codes = with_language_tokens(folder, languages, ids, tags)
    model, table = LAYOUT.read(folder, arrangement, arrangement, ids, start=2)
    return Published(model, table, tokenizers, codes)
