"""Word alignments: which words of a sentence pair translate each other.

They are written in the Pharaoh format: `0-0 2-1` says that the first target word comes from the
first source word, and the second from the third. A word is what stands between spaces, tabs and
the like of ASCII, as for fast_align and Marian.
"""

import re
from collections.abc import Iterable, Iterator, Sequence
from contextlib import closing

import numpy as np

from transformer_jax.data.sources.base import Pair
from transformer_jax.data.sources.files import read_lines
from transformer_jax.data.tokenizer import NOWHERE, Tokenizer
from transformer_jax.data.tokenizer_pair import Tokenizers
from transformer_jax.errors import UserError

#: (source word, target word) of each link, counted from 0.
Links = list[tuple[int, int]]

#: A line of an alignments file, and where it is, such as `train.align:7`.
Line = tuple[str, str]

_LINK = re.compile(r"([0-9]{1,9})-([0-9]{1,9})", re.ASCII)


def pharaoh(links: Iterable[tuple[int, int]]) -> str:
    """`0-0 2-1`."""
    return " ".join(f"{source}-{target}" for source, target in links)


def read_alignments(paths: Iterable[str]) -> Iterator[Line]:
    """The lines of files in the Pharaoh format.

    Raises:
        UserError: a file cannot be read.
    """
    for path in paths:
        with closing(read_lines(path)) as lines:
            for number, line in enumerate(lines, start=1):
                yield line, f"{path}:{number}"


def parse(line: Line, pair: Pair, *, shortened: bool = False) -> Links:
    """The links that a line says are between the words of a pair.

    Args:
        line: of the file.
        pair: its texts.
        shortened: a noise took words from their ends. Links of these are left out.

    Raises:
        UserError: it says something else, or a link is to a word that the pair has not.
    """
    links, place = [], line[1]
    counts = [len(text.encode().split()) for text in pair]
    for word in line[0].split():
        match = _LINK.fullmatch(word)
        if not match:
            raise UserError(
                f"{place}: {word!r} is no link of words: expected such as 0-0 1-2, the number of "
                "the source word and of the target word, from 0"
            )
        link = int(match[1]), int(match[2])
        sides = zip(("source", "target"), link, counts, strict=True)
        beyond = [(side, count) for side, number, count in sides if number >= count]
        if not beyond:
            links.append(link)
        elif not shortened:
            raise UserError(
                f"{place}: the link {word} is to a {beyond[0][0]} word that is not there: the "
                f"sentence has {beyond[0][1]} words, and the first one is 0"
            )
    return links


def piece_links(links: Links, tokenizers: Tokenizers, pair: Pair) -> np.ndarray:
    """The links between the pieces of linked words, [links, 2] int64 (source, target).

    Args:
        links: between the words of the pair.
        tokenizers: that cut its texts into pieces.
        pair: source and target.
    """
    sides = zip((tokenizers.source, tokenizers.target), pair, strict=True)
    sources_WS, targets_WT = (words(tokenizer, text) for tokenizer, text in sides)
    linked_WW = np.zeros((len(sources_WS), len(targets_WT)), np.int32)
    linked_WW[tuple(np.array(links, np.int64).reshape(-1, 2).T)] = 1
    return np.argwhere(sources_WS.T.astype(np.int32) @ linked_WW @ targets_WT.astype(np.int32))


def words(tokenizer: Tokenizer, given: str | Sequence[int]) -> np.ndarray:
    """Which pieces each word of a text has a part in, [words, pieces] bool.

    The words are those of the text as it was written, whatever its tokenizer makes of it: one that
    normalises cuts a word at a no-break space. What is no text, such as a language token, belongs
    to no word.

    Args:
        tokenizer: of the pieces.
        given: a text, or ids without EOS for the text that they are decoded to.
    """
    if isinstance(given, str):
        text, places = given.encode(), tokenizer.places(given)
    else:
        surfaces = tokenizer.surfaces(given)
        text, ends = b"".join(surfaces), np.cumsum([0, *map(len, surfaces)]).tolist()
        places = [
            (begin, end) if end > begin else NOWHERE
            for begin, end in zip(ends[:-1], ends[1:], strict=True)
        ]
    # The space before a word is a part of it: it may be a piece.
    spans = [match.span() for match in re.finditer(rb"\s*\S+", text)]
    if not isinstance(given, str) and len(spans) != len(tokenizer.decode(given).encode().split()):
        spans = []
    begins_W1, ends_W1 = np.array(spans, np.int64).reshape(-1, 2, 1).swapaxes(0, 1)
    begins_P, ends_P = np.array(places, np.int64).reshape(-1, 2).T
    # The first pieces of a character, such as its first bytes, are empty and where it begins.
    ends_P = np.maximum(ends_P, begins_P + 1)
    return np.maximum(begins_W1, begins_P) < np.minimum(ends_W1, ends_P)


def links_of(
    looks_TS: np.ndarray,
    sources_WS: np.ndarray,
    targets_WT: np.ndarray,
    *,
    every_source: bool = False,
) -> Links:
    """The source word that each target word uses most. A word without pieces has no link.

    Args:
        looks_TS: how much each target piece uses each source piece.
        sources_WS: from `words`.
        targets_WT: likewise.
        every_source: then also the target word that uses it most, of each other source word.
    """
    sources, targets = (np.flatnonzero(each.any(axis=1)) for each in (sources_WS, targets_WT))
    if not len(sources) or not len(targets):
        return []
    # A piece of two words counts for both.
    looks_WS = targets_WT[targets].astype(np.float32) @ looks_TS
    uses_WW = looks_WS @ sources_WS[sources].T.astype(np.float32)
    found = list(enumerate(uses_WW.argmax(axis=1).tolist()))
    if every_source:
        linked = {source for _, source in found}
        best = enumerate(uses_WW.argmax(axis=0).tolist())
        found += [(target, source) for source, target in best if source not in linked]
    return [(int(sources[source]), int(targets[target])) for target, source in found]
