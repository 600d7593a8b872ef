"""Pairs of which one side is not written in the script of its language."""

import functools
import re
import unicodedata
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated

import numpy as np
from pydantic import Field

from transformer_jax.data.filters.base import Filter
from transformer_jax.data.sources.base import Languages, Pair
from transformer_jax.settings.languages import base_language

#: How the Unicode names of the letters of a script begin: languages that are written in it.
_LANGUAGES = {
    "ARABIC": "ar fa ur ps ug sd ckb",
    "ARMENIAN": "hy",
    "BENGALI": "bn as",
    "CJK IDEOGRAPHIC HIRAGANA KATAKANA KATAKANA-HIRAGANA": "ja",
    "CJK IDEOGRAPHIC": "zh yue",
    "CYRILLIC": "ru uk bg mk be kk ky mn tg tt ba cv sah",
    "DEVANAGARI": "hi mr ne sa mai bho",
    "ETHIOPIC": "am ti",
    "GEORGIAN": "ka",
    "GREEK": "el grc",
    "GUJARATI": "gu",
    "GURMUKHI": "pa",
    "HANGUL CJK": "ko",
    "HEBREW": "he yi",
    "KANNADA": "kn",
    "KHMER": "km",
    "LAO": "lo",
    "LATIN": "af ast az br bs ca ceb cs cy da de en eo es et eu fi fil fo fr ga gd gl ha hr ht hu "
    "id ig is it jv la lb lt lv mg mi ms mt nb nl nn no oc pl pt ro rw sk sl sn so sq st sv sw tk "
    "tr uz vi xh yo zu",
    "MALAYALAM": "ml",
    "MYANMAR": "my",
    "ORIYA": "or",
    "SINHALA": "si",
    "TAMIL": "ta",
    "TELUGU": "te",
    "THAI": "th",
    "TIBETAN": "bo dz",
}
_SCRIPTS = {code: names.split() for names, codes in _LANGUAGES.items() for code in codes.split()}


@dataclass(frozen=True)
class Script(Filter):
    """Pairs of which one side has less than `least` of its letters in its language's script.

    Languages whose script is not known, or that have several, such as `sr`, are not judged.
    """

    least: Annotated[float, Field(gt=0, le=1)] = 0.5  #: the least share of a pair that is kept

    def marks(self, pairs: Sequence[Pair], languages: Languages) -> np.ndarray:
        bad = np.zeros(len(pairs), bool)
        for side, code in enumerate(languages):
            if scripts := _SCRIPTS.get(base_language(code)):
                bad |= [_share(pair[side], scripts) < self.least for pair in pairs]
        return bad


def _share(text: str, scripts: Sequence[str]) -> float:
    """The share of the letters that are of one of the scripts; 1 where there are no letters."""
    if scripts == ["LATIN"] and (text.isascii() or _LATIN_1.fullmatch(text)):
        return 1.0
    usual = unicodedata.normalize("NFKC", text)  # letters of usual width
    letters = usual.translate(_table(tuple(scripts)))
    return letters.count(_OWN) / len(letters) if letters else 1.0


_OWN, _OTHER = "xo"
#: Text whose letters are all Latin: of Latin-1 all characters but the micro sign.
_LATIN_1 = re.compile("[\x00-\xb4\xb6-\xff]*")


class _Table(dict[int, str | None]):
    """A table for `str.translate`: letters of some scripts, other letters, and nothing else."""

    def __init__(self, scripts: Sequence[str]) -> None:
        super().__init__()
        self._scripts = scripts

    def __missing__(self, code: int) -> str | None:
        character, kind = chr(code), None
        if character.isalpha():
            script = unicodedata.name(character, "NONE").partition(" ")[0]
            kind = _OWN if script in self._scripts else _OTHER
        self[code] = kind
        return kind


_table = functools.cache(_Table)
