"""Word alignments: which words of a sentence pair translate each other.

They are written in the Pharaoh format: `0-0 2-1` says that the first target word comes from the
first source word, and the second from the third. A word is what stands between spaces, tabs and
the like of ASCII, as for fast_align and Marian.
"""

import re
from collections.abc import Sequence

import numpy as np

from transformer_jax.data.tokenizer import Tokenizer

#: (source word, target word) of each link, counted from 0.
Links = list[tuple[int, int]]

_BYTE = re.compile(r"<0x([0-9A-F]{2})>")


def pharaoh(links: Links) -> str:
    """`0-0 2-1`."""
    return " ".join(f"{source}-{target}" for source, target in links)


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
