"""Translates documents: whole blocks of sentences, each with what precedes it as context.

A block is consecutive sentences of a document, joined by the separator piece, as in training
(`data.blocks`). The end of the document so far stands before it: the source sentences as they are,
and on the target side their own translations as a forced prefix. A translation of a block counts
if it has as many sentences as its source. If not, the block is translated again in halves, at last
sentence by sentence. So every sentence has one translation.
"""

from collections.abc import Callable, Generator, Iterator, Sequence
from dataclasses import dataclass, field

from transformer_jax.vocabulary import EOS_ID

Ids = Sequence[int]
#: (sources, prefixes of their targets) -> targets, with prefix, and with EOS if they are complete.
Decode = Callable[[Sequence[Ids], Sequence[Ids]], Sequence[Ids]]


@dataclass(frozen=True)
class Room:
    """How long blocks are, in pieces.

    Attributes:
        block: of a block with its context, EOS included.
        context: of these, at most so many precede the block, on each side.
        separators: the ids of the separator piece, in source and target.
    """

    block: int
    context: int
    separators: tuple[int, int]


@dataclass
class Tally:
    """What became of the blocks; grows while documents are translated."""

    blocks: int = 0  #: blocks that were formed
    divided: int = 0  #: of these, those whose translation had another number of sentences
    alone: int = 0  #: sentences that were translated alone because of that
    cut: int = 0  #: sentences that were longer than the limit, and cut
    seconds: float = 0.0  #: wall time, compilation included
    compile_seconds: float = 0.0  #: of these, tracing and compiling

    def __str__(self) -> str:
        share = self.divided / max(1, self.blocks)
        return (
            f"{self.divided:,} of {self.blocks:,} blocks ({share:.1%}) had another number of "
            f"sentences in translation and were translated again in parts, {self.alone:,} "
            "sentences of them alone"
        )


@dataclass
class _Document:
    """A document of which some sentences are translated."""

    sources: Sequence[Ids]
    targets: list[Ids] = field(default_factory=list)
    #: Where the parts of a divided block end; the last is the next part's end.
    ends: list[int] = field(default_factory=list)


@dataclass(frozen=True)
class _Block:
    """Sentences `start` ... `stop` - 1 of a document; those from `context` on precede them."""

    context: int
    start: int
    stop: int


def blocks(
    sources: Sequence[Ids], room: Room, tally: Tally
) -> Generator[tuple[list[int], list[int]], Ids, list[Ids]]:
    """Yields one block after the other, source and prefix of its target, and is sent the target.

    Args:
        sources: ids of the sentences of a document, no EOS.
        room: how long blocks are.
        tally: gets the numbers of blocks.

    Yields:
        ids of the block with its context, and of the context's translation, which the target
        begins with. What is sent is the target: with the prefix, and with EOS if it is complete.

    Returns:
        the translation of each sentence, as ids without EOS.
    """
    document = _Document(sources)
    source, target = room.separators
    while len(document.targets) < len(sources):
        block = _next_block(document, room)
        tally.cut += max(map(len, sources[block.start : block.stop])) >= room.block
        prefix = _ended(document.targets[block.context : block.start], target)
        ids = yield _ended(sources[block.context : block.stop], source)[:-1], prefix
        _accept(document, block, ids[len(prefix) :], target, tally)
    return document.targets


def translate_documents(
    documents: Sequence[Sequence[Ids]],
    decode: Decode,
    room: Room,
    tally: Tally,
    progress: Callable[[int], None] = lambda count: None,
) -> list[list[Ids]]:
    """The translation of each sentence of each document, as ids without EOS.

    Args:
        documents: the ids of their sentences, no EOS.
        decode: translates blocks; those of all documents together, one of each at a time.
        room: how long blocks are.
        tally: gets the numbers of blocks.
        progress: called with the number of sentences of a document that was just finished.
    """
    done: dict[int, list[Ids]] = {}
    running = {number: blocks(each, room, tally) for number, each in enumerate(documents)}
    sent: dict[int, Ids | None] = dict.fromkeys(running)
    while running:
        asked = {}
        for number, document in list(running.items()):
            try:
                # A generator that has not begun takes None alone.
                asked[number] = document.send(sent[number])  # type: ignore[arg-type]
            except StopIteration as end:
                done[number] = end.value
                del running[number]
                progress(len(end.value))
        if asked:
            sources, prefixes = zip(*asked.values(), strict=True)
            sent |= dict(zip(asked, decode(sources, prefixes), strict=True))
    return [done[number] for number in range(len(documents))]


def _next_block(document: _Document, room: Room) -> _Block:
    """The block after what is translated: as many sentences as there is room for, at least one."""
    sources, targets = document.sources, document.targets
    start = context = len(targets)
    stop = document.ends[-1] if document.ends else start + 1
    length = sum(len(each) + 1 for each in sources[start:stop])
    source_room, target_room = min(room.context, room.block - length), room.context
    while context:
        source_room -= len(sources[context - 1]) + 1
        target_room -= len(targets[context - 1]) + 1
        if min(source_room, target_room) < 0:
            break
        context -= 1
    if not document.ends:
        length = sum(len(each) + 1 for each in sources[context:stop])
        for each in sources[stop:]:
            length += len(each) + 1
            if length > room.block:
                break
            stop += 1
    return _Block(context, start, stop)


def _accept(document: _Document, block: _Block, ids: Ids, separator: int, tally: Tally) -> None:
    """Takes the translation of a block if it has as many sentences; else divides the block."""
    count, is_part = block.stop - block.start, bool(document.ends)
    tally.blocks += not is_part
    is_whole = len(ids) > 0 and ids[-1] == EOS_ID
    sentences = list(_split(ids, separator))
    if count == 1:
        tally.alone += is_part
        sentences = [[i for each in sentences for i in each]]
    elif not is_whole or len(sentences) != count:
        tally.divided += not is_part
        if not is_part:
            document.ends.append(block.stop)
        document.ends.append(block.start + count // 2)
        return
    document.targets += sentences
    if is_part:
        document.ends.pop()


def _ended(sentences: Sequence[Ids], separator: int) -> list[int]:
    """The ids of sentences, each followed by the separator."""
    return [i for each in sentences for i in (*each, separator)]


def _split(ids: Ids, separator: int) -> Iterator[list[int]]:
    """The parts of a translation between separators, without EOS."""
    part: list[int] = []
    for i in ids:
        if i == separator:
            yield part
            part = []
        elif i != EOS_ID:
            part.append(i)
    yield part
