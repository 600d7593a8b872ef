"""Codes of languages, and the detector that the filters of training text and the server share."""

import functools
from typing import Any

from transformer_jax.errors import optional


@functools.cache
def base_language(code: str) -> str:
    """The language that a code names, in its shortest form and without script and region.

    `zh` of zh_Hans, `pt` of pt-BR, `de` of deu_Latn. What is not the code of a language stays as
    it is, up to its first "-" or "_", in lower case.
    """
    import langcodes  # which reads its tables

    try:
        return str(langcodes.get(code).prefer_macrolanguage().language or code)
    except langcodes.LanguageTagError:
        return code.replace("_", "-").partition("-")[0].lower()


@functools.cache
def detector() -> Any:
    """The identifier of py3langid, which gives probabilities.

    It is naive Bayes over byte n-grams (Lui and Baldwin 2012), small and without downloads, and
    right for most sentences of 30 characters and more. Its weights are in its wheel, a NumPy file
    of which nothing is unpickled.

    Raises:
        UserError: the package is missing.
    """
    langid = optional("py3langid.langid", "finding the language of a text", "langid")
    return langid.LanguageIdentifier.from_model_file(langid.MODEL_FILE, norm_probs=True)


@functools.cache
def detector_label(code: str) -> str | None:
    """The name that the detector has for a language; None: it does not know it.

    Raises:
        UserError: as `detector`.
    """
    return {base_language(label): label for label in detector().labels}.get(base_language(code))
