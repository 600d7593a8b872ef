"""M2M100 (Fan et al. 2020, arXiv:2010.11125) and NLLB-200 (arXiv:2207.04672).

Pre-norm models with Tensor2Tensor's sinusoids, counted from 2, and one vocabulary for all
languages. The two differ in what numbers the pieces: `vocab.json`, or SentencePiece itself.
"""

import re

from transformer_jax.formats.family import Languages, Published
from transformer_jax.formats.transformers.bart_layout import BartLayout
from transformer_jax.formats.transformers.language_tokens import (
    added_tokens,
    fairseq_ids,
    is_language,
    read_with_language_tokens,
)
from transformer_jax.positions.sinusoidal import Sinusoidal
from transformer_jax.weights.layout import ModelFolder

#: The languages of M2M100 in the order of their tokens, which no published file lists with ids.
LANGUAGES = {
    "m2m100": (
        "af am ar ast az ba be bg bn br bs ca ceb cs cy da de el en es et fa ff fi fr fy ga gd gl "
        "gu ha he hi hr ht hu hy id ig ilo is it ja jv ka kk km kn ko lb lg ln lo lt lv mg mk ml "
        "mn mr ms my ne nl no ns oc or pa pl ps pt ro ru sd si sk sl so sq sr ss su sv sw ta th "
        "tl tn tr uk ur uz vi wo xh yi yo zh zu"
    ),
    "wmt21": "en ha is ja cs ru zh de",
}

#: A language token that was added.
_LANGUAGE = re.compile(r"__[a-zA-Z_]+__")

LAYOUT = BartLayout(
    architecture="M2M100ForConditionalGeneration",
    ties=("all",),
    position=Sinusoidal(form="tensor2tensor", first=2),
    norm_placement="pre",
)


def m2m100(folder: ModelFolder, languages: Languages) -> Published:
    """A folder of `M2M100ForConditionalGeneration`."""
    if (folder.path / "vocab.json").is_file():
        ids = folder.piece_ids("vocab.json")
        settings = folder.settings("tokenizer_config.json")
        codes = settings.choose("language_codes", LANGUAGES, "m2m100")
        tags = {code: f"__{code}__" for code in codes.split()}
        ids |= {tag: len(ids) + i for i, tag in enumerate(tags.values())}
        added = {tag: i for tag, i in added_tokens(folder).items() if _LANGUAGE.fullmatch(tag)}
        ids |= added
        tags |= {tag.strip("_"): tag for tag in added}
    else:
        ids = fairseq_ids(folder)
        tags = {piece: piece for piece in ids if is_language(piece)}
    return read_with_language_tokens(LAYOUT, folder, languages, ids, tags, start=2)
