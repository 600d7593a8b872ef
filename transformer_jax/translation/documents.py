"""Translates documents: whole blocks of sentences, each with what precedes it as context.

A block is consecutive sentences of a document, joined by the separator piece, as in training
(`data.blocks`). The end of the document so far stands before it: the source sentences as they are,
and on the target side their own translations as a forced prefix. A translation of a block counts
if it came to its end, and has as many sentences as its source and none of them empty. If not, the
block is translated again in halves, at last sentence by sentence. So every sentence has one
translation.
"""

import math
from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise
from typing import NamedTuple

from transformer_jax.translation.run_batches import Timing
from transformer_jax.vocabulary import EOS_ID

Ids = Sequence[int]


class Asked(NamedTuple):
    """A block that is to be translated, as ids without EOS."""

    source: Ids  #: with its context
    prefix: Ids  #: the context's translation, which the target begins with
    first: int  #: the number in the document of the first sentence after the context


#: Blocks, and for each the number of its first sentence -> their targets, with the prefix, and with
#: EOS if the model ended them.
Decode = Callable[[Sequence[Asked], Sequence[int]], Sequence[Ids]]


@dataclass(frozen=True)
class Room:
    """How long blocks are, in pieces, and on each side.

    Attributes:
        block: of a block with its context, EOS included.
        context: of these, at most so many precede the block.
        separators: the ids of the separator piece, in source and target.
        sentence: from this length on, EOS not counted, a source sentence is cut.
        sentences: of a block with its context, at most; of the context at most half as many. None:
            as many as fit.
    """

    block: int
    context: int
    separators: tuple[int, int]
    sentence: int
    sentences: int | None = None


@dataclass
class Tally:
    """What became of the blocks; grows while documents are translated."""

    blocks: int = 0  #: blocks that were formed
    divided: int = 0  #: of these, those whose translation was not one of all their sentences
    alone: int = 0  #: sentences that were translated alone because of that
    sentences: int = 0
    cut: int = 0  #: of these, those that were longer than the limit, and cut
    not_finite: int = 0  #: blocks whose score was not a finite number
    timing: Timing = Timing()

    @property
    def counts(self) -> dict[str, int]:
        """What of it adds up over the parts of a text."""
        return {name: value for name, value in vars(self).items() if isinstance(value, int)}

    def __str__(self) -> str:
        share = self.divided / max(1, self.blocks)
        return (
            f"{self.divided:,} of {self.blocks:,} blocks ({share:.1%}) had another number of "
            f"sentences in translation, or no end, and were translated again in parts, "
            f"{self.alone:,} sentences of them alone"
        )


def blocks(sources: Sequence[Ids], room: Room, tally: Tally) -> Generator[Asked, Ids, list[Ids]]:
    """Yields one block after the other, and is sent its target.

    Args:
        sources: ids of the sentences of a document, no EOS.
        room: how long blocks are.
        tally: gets the numbers of blocks.

    Yields:
        the block. What is sent is the target: with the prefix, and with EOS if the model ended it.

    Returns:
        the translation of each sentence, as ids without EOS.
    """
    targets: list[Ids] = []
    tally.sentences += len(sources)
    tally.cut += sum(len(each) >= room.sentence for each in sources)
    while len(targets) < len(sources):
        yield from _next_block(sources, targets, None, room, tally)
    return targets


def _next_block(
    sources: Sequence[Ids], targets: list[Ids], end: int | None, room: Room, tally: Tally
) -> Generator[Asked, Ids, None]:
    """Yields the block after the sentences with targets, and adds the targets of its sentences.

    It is asked for again in halves if its translation has not as many sentences.

    Args:
        end: where it ends, as a part of a block that was divided; None: where the room ends.
    """
    start, is_part, (source, target) = len(targets), end is not None, room.separators
    context, stop = _place(sources, targets, end, room)
    prefix = _ended(targets[context:start], target)
    ids = yield Asked(_ended(sources[context:stop], source)[:-1], prefix, start)
    ids = ids[len(prefix) :]
    tally.blocks += not is_part
    sentences, count = _split(ids, target), stop - start
    if count == 1:
        tally.alone += is_part
        targets.append([i for each in sentences for i in each])
    elif EOS_ID in ids[-1:] and len(sentences) == count and all(sentences):
        targets += sentences
    else:
        tally.divided += not is_part
        for half in (start + count // 2, stop):
            yield from _next_block(sources, targets, half, room, tally)


def translate_documents(
    documents: Sequence[Sequence[Ids]],
    decode: Decode,
    room: Room,
    tally: Tally,
    progress: Callable[[int], None] = lambda count: None,
    first_ids: Sequence[int] | None = None,
) -> list[list[Ids]]:
    """The translation of each sentence of each document, as ids without EOS.

    Args:
        documents: the ids of their sentences, no EOS.
        decode: translates blocks; those of all documents together, one of each at a time.
        room: how long blocks are.
        tally: gets the numbers of blocks.
        progress: called with the number of sentences of a document that was just finished.
        first_ids: the number of the first sentence of each document, from which the others are
            counted. None: the sentences of all documents are counted through.
    """
    first_ids = first_ids or list(accumulate(map(len, documents), initial=0))
    done: dict[int, list[Ids]] = {}
    running = {number: blocks(each, room, tally) for number, each in enumerate(documents)}
    sent: dict[int, Ids | None] = dict.fromkeys(running)
    while running:
        asked: dict[int, Asked] = {}
        for number, document in list(running.items()):
            try:
                # A generator that has not begun takes None alone.
                asked[number] = document.send(sent[number])  # type: ignore[arg-type]
            except StopIteration as end:
                done[number] = end.value
                del running[number]
                progress(len(end.value))
        if asked:
            numbers = [first_ids[number] + each.first for number, each in asked.items()]
            sent |= dict(zip(asked, decode(list(asked.values()), numbers), strict=True))
    return [done[number] for number in range(len(documents))]


def _place(
    sources: Sequence[Ids], targets: Sequence[Ids], end: int | None, room: Room
) -> tuple[int, int]:
    """Where the context of the next block begins, and where the block ends.

    Without a given end the block has as many of the sentences that are not translated yet as there
    is room for, at least one.
    """
    start = context = len(targets)
    stop = end or start + 1
    most = room.sentences or 2 * len(sources)
    # How long a translation is, nobody knows: as the earlier ones of the document, or its source.
    growth = max(1.0, _slots(targets) / _slots(sources[:start])) if start else 1.0
    length = math.ceil(growth * _slots(sources[start:stop]))
    before = min(room.context, room.block - length)
    for number in reversed(range(max(0, start - most // 2), start)):
        if max(_slots(sources[number:start]), _slots(targets[number:start])) > before:
            break
        context = number
    if end:
        return context, stop
    known = _slots(sources[context:start]), _slots(targets[context:start])
    while stop < len(sources) and stop < context + most:
        new = _slots(sources[start : stop + 1])
        if max(known[0] + new, known[1] + math.ceil(growth * new)) > room.block:
            break
        stop += 1
    return context, stop


def _slots(sentences: Sequence[Ids]) -> int:
    """The pieces of sentences, each with its separator or EOS."""
    return sum(len(each) + 1 for each in sentences)


def _ended(sentences: Sequence[Ids], separator: int) -> list[int]:
    """The ids of sentences, each followed by the separator."""
    return [i for each in sentences for i in (*each, separator)]


def _split(ids: Ids, separator: int) -> list[list[int]]:
    """The parts of a translation between separators, without EOS."""
    kept = [i for i in ids if i != EOS_ID]
    cuts = [-1, *(at for at, i in enumerate(kept) if i == separator), len(kept)]
    return [kept[before + 1 : cut] for before, cut in pairwise(cuts)]
