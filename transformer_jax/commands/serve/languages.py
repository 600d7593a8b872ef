"""Codes, names and the detection of languages.

Detection is py3langid's, limited to the languages that the server knows: it gives probabilities,
and needs only NumPy. Comparing how well the models' tokenizers fit the text would need no
library, but says nothing where two languages share a vocabulary, as they do by default here.
"""

from collections.abc import Collection

from transformer_jax.settings.languages import base_language, detector, detector_label


def name_of(code: str) -> str:
    """The English name of a language, or the code if it is not a known one."""
    from babel import Locale

    names = Locale("en").languages
    return str(names.get(code.replace("-", "_")) or names.get(base_language(code)) or code)


def detect(text: str, codes: Collection[str]) -> list[tuple[str, float]]:
    """(code, probability) of those codes that the detector knows, the most probable first."""
    by_label = {detector_label(code): code for code in reversed(sorted(codes))}
    known = [label for label in by_label if label]
    if not known:
        return []
    detector().set_languages(known)
    try:
        return [(by_label[label], probability) for label, probability in detector().rank(text)]
    finally:
        detector().set_languages(None)
