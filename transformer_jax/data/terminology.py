"""Terms whose translation is given: the source names it where the term occurs.

    the red car stops   ->   the red car ⟦ Wagen ⟧ stops

A model that is trained on such text learns to use what the brackets hold, also for terms that it
has not seen (Dinu et al. 2019, arXiv:1906.01105, "append", without source factors). In training a
share of the pairs is annotated, with terms whose translation the target has; when translating,
every term is.

A term is found where it stands as whole words, in the same case. Terms do not overlap: the leftmost
wins, and of those that begin there the longest.
"""

import re
import zlib
from collections.abc import Callable, Iterable, Iterator
from typing import Self

from transformer_jax.data.sources.base import Pair
from transformer_jax.data.sources.files import read_tsv
from transformer_jax.errors import UserError

_WORD = re.compile(r"\w+|[^\w\s]")


class Terminology:
    """Source terms with their translations.

    Args:
        pairs: source and target terms. Of several translations of a term the first is used when
            translating, and in training the first that the target has.
    """

    def __init__(self, pairs: Iterable[Pair]) -> None:
        self._translations: dict[str, list[str]] = {}
        for source, target in pairs:
            self._translations.setdefault(source, []).append(target)
        self._longest = max((len(_WORD.findall(term)) for term in self._translations), default=0)

    @classmethod
    def from_file(cls, path: str) -> Self:
        """Reads a file with lines `source term <TAB> target term`.

        Raises:
            UserError: it cannot be read, or a line is not of this form.
        """
        pairs = []
        for number, (source, target) in enumerate(read_tsv(path), start=1):
            if not source.strip() or not target.strip():
                raise UserError(f"{path}:{number}: expected source term TAB target term")
            pairs.append((source.strip(), target.strip()))
        return cls(pairs)

    def annotate(self, source: str) -> str:
        """The sentence with the translation of each term after it."""
        return self._insert(source, lambda term: self._translations[term][0])

    def annotate_training(self, pair: Pair, share: float) -> Pair:
        """The pair, and in `share` of all pairs its source annotated with what its target has.

        Which pairs these are depends on their text alone.
        """
        source, target = pair
        if zlib.crc32(f"{source}\t{target}".encode()) >= share * 2**32:
            return pair
        return self._insert(source, lambda term: self._used(term, target)), target

    def honoured(self, source: str, translation: str) -> tuple[int, int]:
        """(terms of the source whose translation is used, terms of the source), each term once."""
        terms = {source[start:end] for start, end in self._find(source)}
        used = [term for term in terms if _has(translation, self._translations[term][0])]
        return len(used), len(terms)

    def _used(self, term: str, target: str) -> str | None:
        return next((each for each in self._translations[term] if _has(target, each)), None)

    def _insert(self, source: str, translation_of: Callable[[str], str | None]) -> str:
        parts, done = [], 0
        for start, end in self._find(source):
            if translation := translation_of(source[start:end]):
                parts += [source[done:end], f" ⟦ {translation} ⟧"]
                done = end
        return "".join([*parts, source[done:]])

    def _find(self, text: str) -> Iterator[tuple[int, int]]:
        """The places of terms, from left to right."""
        words = [match.span() for match in _WORD.finditer(text)]
        first = 0
        while first < len(words):
            for last in reversed(range(first, min(first + self._longest, len(words)))):
                if text[words[first][0] : words[last][1]] in self._translations:
                    yield words[first][0], words[last][1]
                    first = last
                    break
            first += 1


def _has(text: str, term: str) -> bool:
    """Whether the text has the term as whole words."""
    return re.search(rf"(?<!\w){re.escape(term)}(?!\w)", text) is not None
