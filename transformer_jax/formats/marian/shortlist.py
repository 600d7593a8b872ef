"""Lexical shortlists of Bergamot's engine: the target pieces that it chooses among.

They are those that the pieces of a source are linked with most often in a text (Jean et al. 2015,
arXiv:1412.2007, section 3.2), and the most frequent ones, which are in the list of EOS, as it ends
every source. With one vocabulary the engine adds the pieces of the source. It lists the pieces of
a batch together. The file is Marian's binary one, all little-endian:

    u64 magic | u64 checksum | u64 first | u64 best | u64 offsets | u64 ids
    | u64 x offsets, where the target ids of each source piece begin | u32 x ids

The engine allows the target ids below `first` for every source. We write 0.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import chain, islice
from typing import NamedTuple

import numpy as np

from transformer_jax.data.alignments import (
    Line,
    Links,
    parse,
    pharaoh,
    piece_links,
    read_alignments,
)
from transformer_jax.data.sources.base import Pair
from transformer_jax.data.sources.files import read_parallel
from transformer_jax.data.tokenizer_pair import Tokenizers
from transformer_jax.vocabulary import EOS_ID
from transformer_jax.weights.arrangement import Arrangement

#: Target pieces of a source piece, and of every source, as in Firefox's `lex.50.50`.
BEST = FREQUENT = 50

_MAGIC = 0xF11A48D5013417F5
_CHUNK = 10_000  # pairs that are counted at a time
_ALIGNED = 500_000  # pairs that a model aligns, at most

Align = Callable[[Sequence[str], Sequence[str]], Sequence[Links]]


class LinkCounts(NamedTuple):
    """How often pieces are linked in a text.

    Attributes:
        sources, targets: [links], the ids of pieces that are linked; each two once, ascending.
        counts: [links], how often.
        occurrences: [target pieces], how often each is in the text.
    """

    sources: np.ndarray
    targets: np.ndarray
    counts: np.ndarray
    occurrences: np.ndarray


def shortlist_of(
    files: Sequence[str], tokenizers: Tokenizers, align: Align | None = None
) -> list[np.ndarray]:
    """The target pieces of each source piece, ascending, by the word alignments of a text.

    Args:
        files: source lines, target lines, and a line of alignments for each pair.
        tokenizers: of the model.
        align: makes the alignments of sources and targets, where the third file is left out; of the
            first `_ALIGNED` pairs.

    Raises:
        UserError: a file cannot be read, or the lines of the files do not go together.
    """
    source, target, *alignments = files
    pairs = read_parallel(source, target)
    if align is not None and not alignments:
        lines = _aligned(islice(read_parallel(source, target), _ALIGNED), align)
        pairs = islice(pairs, _ALIGNED)
    else:
        for _ in read_parallel(source, alignments[0]):
            pass  # refuses another number of lines
        lines = read_alignments(alignments)
    return most_linked(count_links(pairs, lines, tokenizers), tokenizers.source.vocab_size)


def _aligned(pairs: Iterator[Pair], align: Align) -> Iterator[Line]:
    while chunk := list(islice(pairs, _CHUNK)):
        for links in align(*zip(*chunk, strict=True)):
            yield pharaoh(links), "alignments of the model"


def count_links(pairs: Iterable[Pair], lines: Iterable[Line], tokenizers: Tokenizers) -> LinkCounts:
    """Counts the links between the pieces of pairs whose words are aligned.

    Raises:
        UserError: a line is no alignment of its pair.
    """
    size = tokenizers.target.vocab_size
    found, occurrences = [(np.zeros(0, np.int64), np.zeros(0, np.int64))], np.zeros(size, np.int64)
    rows = zip(pairs, lines, strict=True)
    while chunk := list(islice(rows, _CHUNK)):
        sides = [
            tokenizer.encode_batch([pair[place] for pair, _ in chunk])
            for place, tokenizer in enumerate((tokenizers.source, tokenizers.target))
        ]
        keys = []
        for (pair, line), source, target in zip(chunk, *sides, strict=True):
            links = piece_links(parse(line, pair), tokenizers, pair)
            sources, targets = (np.array(ids, np.int64) for ids in (source, target))
            keys.append(sources[links[:, 0]] * size + targets[links[:, 1]])
        found.append(np.unique(np.concatenate(keys), return_counts=True))
        in_targets = np.fromiter(chain.from_iterable(sides[1]), np.int64)
        occurrences += np.bincount(in_targets, minlength=size)
    keys_N, places_N = np.unique(np.concatenate([keys for keys, _ in found]), return_inverse=True)
    counts_N = np.bincount(places_N, np.concatenate([counts for _, counts in found]))
    return LinkCounts(*np.divmod(keys_N, size), counts_N.astype(np.int64), occurrences)


def most_linked(
    counted: LinkCounts, source_pieces: int, *, best: int = BEST, frequent: int = FREQUENT
) -> list[np.ndarray]:
    """The `best` target pieces of each source piece, and of EOS the `frequent` ones and itself.

    Of pieces with as many links, or occurrences, those with the smaller ids come first.
    """
    order = np.lexsort((counted.targets, -counted.counts, counted.sources))
    sources_N, targets_N = counted.sources[order], counted.targets[order]
    rank_N = np.arange(len(order)) - np.searchsorted(sources_N, sources_N)
    sources_N, targets_N = sources_N[rank_N < best], targets_N[rank_N < best]
    ends = np.searchsorted(sources_N, np.arange(1, source_pieces))
    lists = [np.sort(each) for each in np.split(targets_N, ends)]
    most = np.argsort(-counted.occurrences, kind="stable")[:frequent]
    lists[EOS_ID] = np.union1d([EOS_ID], most[counted.occurrences[most] > 0])
    return lists


def to_bytes(lists: Sequence[np.ndarray], source: Arrangement, target: Arrangement) -> bytes:
    """The content of the file, in the ids of its vocabularies.

    Args:
        lists: target pieces of each source piece.
        source, target: which of their ids each of ours is.
    """
    theirs = [np.zeros(0, np.int64)] * source.size
    for ours, place in enumerate(source.order):
        if place >= 0:
            ids = target.order[lists[ours]]
            theirs[place] = np.sort(ids[ids >= 0])
    offsets = np.append(0, np.cumsum([len(each) for each in theirs]))
    numbers = [0, max(map(len, theirs)), len(offsets), offsets[-1], *offsets]
    body = np.array(numbers, "<u8").tobytes() + np.concatenate(theirs).astype("<u4").tobytes()
    checksum = _checksum(np.frombuffer(body[: len(body) // 8 * 8], "<u8"))
    return np.array([_MAGIC, checksum], "<u8").tobytes() + body


def _checksum(words: np.ndarray) -> int:
    """That of Marian's `util::hashMem`, over whole words."""
    value, mask = 0, (1 << 64) - 1
    for word in words.tolist():
        value ^= (word + 0x9E3779B9 + (value << 6) + (value >> 2)) & mask
    return value
