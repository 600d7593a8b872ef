"""Items with one marked word at a known distance, for `transformer-jax contrast`."""

from collections.abc import Callable, Iterator

from transformer_jax.data.contrast import BETWEEN, Item
from transformer_jax.data.sources.base import Pair, Split
from transformer_jax.data.sources.grammar_documents.documents import streams
from transformer_jax.data.sources.grammar_documents.kinds import KINDS, Mark
from transformer_jax.errors import UserError

#: So many sentences are drawn to find one that fits.
_DRAWS = 1000


def num_words(sentence: str) -> int:
    """The words of a sentence, each with the comma or full stop after it."""
    return len(sentence.split())


def contrast_items(
    kind: str,
    distance: int,
    count: int,
    *,
    facts: int | None = None,
    seed: int = 0,
    length: Callable[[str], int] = num_words,
    split: Split = "test",
) -> Iterator[Item]:
    """Documents that end with one marked sentence; the wrong targets differ from it in one word.

    The deciding word is the last of its sentence. The distance is the length of the German text
    from this word, itself included, to the beginning of the marked sentence: that of the word and
    of the sentences between. It is the one that is asked for, or less by what no sentence fills: at
    most two words. Of recall, the deciding sentence is one of those that the distance has room for.
    At short distances that is one of the last few.

    Args:
        kind: agreement, recall, consistency or order.
        distance: at least the length of the deciding word.
        count: of items.
        facts: sentences before the distance begins: definitions of recall, topics of agreement,
            nouns of consistency, changes of order. None: 1, and for order 4.
        seed: another one draws other items.
        length: of a sentence, such as its tokens and a separator.
        split: the marked sentences, and the pairs of word and meaning, are those of this split
            (`kinds.py`). So "train" asks for what was learned, and "test" for what generalises.

    Yields:
        items of a category such as `agreement/256`, with `facts` as in `recall-16/256`.

    Raises:
        UserError: no such kind, too many facts, or the distance is shorter than the deciding word.
    """
    if kind not in KINDS:
        raise UserError(f"kind={kind}: use {', '.join(KINDS)}")
    episodes, usual, most, _ = KINDS[kind]
    if facts is not None and not 1 <= facts <= most:
        raise UserError(f"facts={facts}: {kind} has 1 to {most}")
    category = f"{kind}{'' if facts is None else f'-{facts}'}/{distance}"
    for number in range(count):
        draw, fillers = streams(seed, category, number)
        episode = next(episodes(draw, split, facts or usual))

        def least_distance(mark: Mark, facts: tuple[Pair, ...] = episode.facts) -> int:
            (_, deciding), *others = facts[mark.fact :]
            return length(deciding.split()[-1]) + sum(length(german) for _, german in others)

        marks = [mark for mark in episode.marks if least_distance(mark) <= distance]
        if not marks:
            shortest = min(map(least_distance, episode.marks))
            raise UserError(
                f"distance={distance}: the deciding word alone has a length of {shortest}"
            )
        mark = draw.one(marks)
        between = _filling(fillers, distance - least_distance(mark), length)
        before = [*episode.facts, *between]
        source, *targets = (
            BETWEEN.join((*(pair[side] for pair in before), last))
            for side, last in ((0, mark.pair[0]), (1, mark.pair[1]), *((1, w) for w in mark.wrong))
        )
        yield Item(source, targets[0], tuple(targets[1:]), category)


def _filling(fillers: Iterator[Pair], room: int, length: Callable[[str], int]) -> Iterator[Pair]:
    """Sentences that together fill the room, or as much of it as sentences can."""
    draws = _DRAWS
    while room and draws:
        pair = next(fillers)
        size = length(pair[1])
        # What is left after a sentence is none, or enough for another one of this length.
        if fits := size == room or 2 * size <= room:
            yield pair
            room -= size
        draws = _DRAWS if fits else draws - 1
