"""The embedded German-English corpus: a source that needs no file and no download."""

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass

from transformer_jax.data.sources.base import Languages, Pair, Source, Split
from transformer_jax.errors import UserError


@dataclass(frozen=True)
class Grammar(Source):
    """25,000 sentence pairs drawn from a small grammar; see `sentences.py`."""

    @property
    def languages(self) -> tuple[str, str]:
        """English to German, unless the config says otherwise."""
        return "en", "de"

    def has(self, split: Split) -> bool:
        """True: all three splits exist."""
        return True

    def pairs(self, split: Split, languages: Languages) -> Iterator[Pair]:
        """The pairs in the order in which the grammar draws them."""
        from transformer_jax.data.sources.grammar.sentences import split_pairs

        _check(languages)
        for english, german in split_pairs(split):
            yield (english, german) if languages == ("en", "de") else (german, english)

    def fingerprint(self, split: Split, languages: Languages) -> str:
        """A hash of the grammar's version, since a version has one text."""
        from transformer_jax.data.sources.grammar.sentences import SPLIT_SIZES, VERSION

        _check(languages)
        return hashlib.sha256(
            f"grammar {VERSION} {SPLIT_SIZES} {split} {languages}".encode()
        ).hexdigest()


def _check(languages: Languages) -> None:
    if sorted(languages) != ["de", "en"]:
        raise UserError(
            f"data.source=grammar has English and German, not {languages[0]} -> {languages[1]}: "
            "set data.source_language and data.target_language to en and de, or de and en"
        )
