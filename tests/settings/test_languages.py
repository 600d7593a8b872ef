"""Codes of languages in every spelling that texts, models and requests use."""

import pytest

from tests.oracles import need
from transformer_jax.data.filters.language import Language
from transformer_jax.data.filters.script import Script
from transformer_jax.settings.languages import base_language, detector_label


@pytest.mark.parametrize(
    ("code", "base"),
    [
        *(("zh_Hans", "zh"), ("zh-CN", "zh"), ("zho", "zh"), ("chi", "zh"), ("cmn", "zh")),
        *(("pt-BR", "pt"), ("deu_Latn", "de"), ("DE", "de"), ("en_XX", "en"), ("sr-Latn", "sr")),
        *(("arb_Arab", "ar"), ("pes_Arab", "fa"), ("lvs_Latn", "lv"), ("tl", "fil")),
        *(("tlh", "tlh"), ("xx", "xx"), ("", ""), ("und", "und"), ("<2x>_y", "<2x>")),
        *(("unknown", "unknown"), ("nb", "nb"), ("yue_Hant", "yue")),
    ],
)
def test_a_code_names_a_language(code: str, base: str) -> None:
    assert base_language(code) == base


def test_filters_know_a_language_by_each_of_its_codes() -> None:
    english_in_cyrillic = [("Мужчина идёт.", "Мужчина идёт.")]
    for code in ("en", "eng_Latn", "tl", "fil", "arb_Arab"):
        assert Script().marks(english_in_cyrillic, (code, "ru")).tolist() == [True], code
    need("py3langid")
    assert detector_label("fil") == detector_label("tl_PH") == "tl"
    assert detector_label("deu_Latn") == "de" and detector_label("tlh") is None
    french = ("Un homme promène son chien dans le parc ce matin.",) * 2
    assert Language().marks([french], ("eng_Latn", "fra_Latn")).tolist() == [True]
