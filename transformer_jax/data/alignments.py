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
from transformer_jax.data.tokenizer import Tokenizer
from transformer_jax.data.tokenizer_pair import Tokenizers
from transformer_jax.errors import UserError

#: (source word, target word) of each link, counted from 0.
Links = list[tuple[int, int]]

#: A line of an alignments file, and where it is, such as `train.align:7`.
Line = tuple[str, str]

_LINK = re.compile(r"([0-9]{1,9})-([0-9]{1,9})", re.ASCII)
_BYTE = re.compile(r"<0x([0-9A-F]{2})>")


def pharaoh(links: Links) -> str:
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


def parse(line: Line, pair: Pair) -> Links:
    """The links that a line says are between the words of a pair.

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
        for side, number, count in zip(("source", "target"), link, counts, strict=True):
            if number >= count:
                raise UserError(
                    f"{place}: the link {word} is to a {side} word that is not there: the sentence "
                    f"has {count} words, and the first one is 0"
                )
        links.append(link)
    return links


def piece_links(links: Links, tokenizers: Tokenizers, *ids: Sequence[int]) -> np.ndarray:
    """The links between the pieces of linked words, [links, 2] int64 (source, target).

    A text of which a tokenizer makes other words than it has gets none.

    Args:
        links: between words.
        tokenizers: of the ids.
        ids: of the source and of the target, without EOS.
    """
    sides = zip((tokenizers.source, tokenizers.target), ids, strict=True)
    sources_WS, targets_WT = (words(tokenizer, each) for tokenizer, each in sides)
    linked_WW = np.zeros((len(sources_WS), len(targets_WT)), np.int32)
    try:
        linked_WW[tuple(np.array(links, np.int64).reshape(-1, 2).T)] = 1
    except IndexError:
        return np.zeros((0, 2), np.int64)
    return np.argwhere(sources_WS.T.astype(np.int32) @ linked_WW @ targets_WT.astype(np.int32))


def words(tokenizer: Tokenizer, ids: Sequence[int]) -> np.ndarray:
    """Which pieces each word of a text has a part in, [words, pieces] bool.

    Args:
        tokenizer: of the ids.
        ids: without EOS. What is no text, such as a language token, belongs to no word.
    """
    surfaces = [
        b"" if i in tokenizer.hidden else _surface(piece)
        for i, piece in zip(ids, tokenizer.pieces(ids), strict=True)
    ]
    ends = np.cumsum([0, *map(len, surfaces)])
    # The space before a word is a part of it: it may be a piece.
    spans = [match.span() for match in re.finditer(rb"\s*\S+", b"".join(surfaces))]
    begins_W1, ends_W1 = np.array(spans, np.int64).reshape(-1, 2, 1).swapaxes(0, 1)
    return np.maximum(begins_W1, ends[:-1]) < np.minimum(ends_W1, ends[1:])


def _surface(piece: str) -> bytes:
    """The text of a piece, in UTF-8; one byte of it for a piece of byte fallback."""
    if match := _BYTE.fullmatch(piece):
        return bytes.fromhex(match[1])
    return piece.replace("▁", " ").encode()


def links_of(looks_TS: np.ndarray, sources_WS: np.ndarray, targets_WT: np.ndarray) -> Links:
    """The source word that each target word uses most.

    Args:
        looks_TS: how much each target piece uses each source piece.
        sources_WS: from `words`.
        targets_WT: likewise.
    """
    if not len(sources_WS):
        return []
    # A piece of two words counts for both.
    uses_WW = targets_WT.astype(np.float32) @ looks_TS @ sources_WS.T.astype(np.float32)
    return [(int(best), number) for number, best in enumerate(uses_WW.argmax(axis=1))]
