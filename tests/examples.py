"""The example sentences of the pages and what the quickstart's model must make of them."""

import re

from tests.pages import PAGES, ROOT, text_of

EXAMPLES = {
    "The dog sleeps.": "Der Hund schläft.",
    "My picture costs forty-five euros.": "Mein Bild kostet fünfundvierzig Euro.",
    "Anna must find twenty-seven books.": "Anna muss siebenundzwanzig Bücher finden.",
    "The king promised to buy a radio.": "Der König hat versprochen, ein Radio zu kaufen.",
    "The door that our brother opened is expensive.": (
        "Die Tür, die unser Bruder aufgemacht hat, ist teuer."
    ),
}

#: A sentence in quotes, which may be JSON's in JSON, or after the prompt of `translate`.
_SENTENCE = re.compile(
    r"""(?:(?<!["'])\\?["']|^> )([A-ZÄÖÜ][\w-]*(?:,? [\w-]+)+\.)(?=\\?["']|$)""", re.MULTILINE
)


def shown_sentences() -> dict[str, set[str]]:
    """Sentence -> where it is shown: README, pages, the notebook, the help of the commands."""
    texts = {page: text_of(page) for page in PAGES}
    for pattern in (
        "transformer_jax/commands/**/*.py",
        "transformer_jax/*.py",
        "docs/notebooks/*.ipynb",
    ):
        for path in ROOT.glob(pattern):
            texts[path.relative_to(ROOT).as_posix()] = path.read_text(encoding="utf-8")
    found: dict[str, set[str]] = {}
    for place, text in texts.items():
        for sentence in _SENTENCE.findall(text):
            found.setdefault(sentence, set()).add(place)
    return found
