"""Codes, names and the detection of languages.

Detection is py3langid's naive Bayes over byte n-grams, limited to the languages that the server
knows. Its weights are in its wheel (a NumPy file, nothing is unpickled), it needs only NumPy, and
it gives probabilities. Comparing how well the models' tokenizers fit the text would need no
library, but says nothing where two languages share a vocabulary, as they do by default here.
"""

import functools
from collections.abc import Collection
from typing import Any


def name_of(code: str) -> str:
    """The English name of a language, or the code if it is not a known one."""
    from babel import Locale

    names = Locale("en").languages
    return str(names.get(code.replace("-", "_")) or names.get(_base(code)) or code)


def detect(text: str, codes: Collection[str]) -> list[tuple[str, float]]:
    """(code, probability) of those codes that the detector knows, the most probable first."""
    by_base = {_base(code): code for code in reversed(sorted(codes))}
    identifier = _identifier()
    known = [base for base in by_base if base in identifier.labels]
    if not known:
        return []
    identifier.set_languages(known)
    try:
        return [(by_base[base], probability) for base, probability in identifier.rank(text)]
    finally:
        identifier.set_languages(None)


def _base(code: str) -> str:
    """`zh` of zh_Hans, `pt` of pt-BR, `de` of deu_Latn where Babel knows that."""
    from babel.core import get_global

    base = code.replace("-", "_").partition("_")[0].lower()
    return str(get_global("language_aliases").get(base, base))


@functools.cache
def _identifier() -> Any:
    from py3langid.langid import MODEL_FILE, LanguageIdentifier

    return LanguageIdentifier.from_model_file(MODEL_FILE, norm_probs=True)
