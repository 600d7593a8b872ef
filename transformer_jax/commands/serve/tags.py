"""Tags of a text, put together around its translation.

A tag is put around the words of the translation that come from its words: around the run of words
in which these prevail, so that each tag is there once and the tags stay balanced. Of a word that a
tag cuts, such as `H<sub>2</sub>O`, the parts that the translation holds as they are keep it.
"""

import re
from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Sequence
from html import escape
from itertools import groupby, pairwise
from typing import NamedTuple

from transformer_jax.commands.serve.markup import CLOSING, Tag
from transformer_jax.data.alignments import Links

#: As in `data.alignments`.
_WORD = re.compile(r"[^ \t\n\r\f\v]+")
_OPENING = frozenset("([{«“‘¿¡（「『【")

#: A part of a text: where it begins and ends.
Span = tuple[int, int]


class Word(NamedTuple):
    """A word of a translation, or a part of one."""

    begin: int  #: in the translated line
    end: int
    source: Span  #: the place of its source word in the plain text
    others: tuple[Span, ...] = ()  #: of source words that no word comes from, but this one most


def words(sentence: str, at: int, translation: str, target_at: int, links: Links) -> Iterator[Word]:
    """The words of a translated sentence.

    Args:
        sentence: the source.
        at: its place in the plain text.
        translation: its translation.
        target_at: the place of the translation in its line.
        links: between the words of the two. The first one of each target word is its own.
    """
    sides = ((sentence, at), (translation, target_at))
    sources, targets = (
        [(place + match.start(), place + match.end()) for match in _WORD.finditer(text)]
        for text, place in sides
    )
    found: dict[int, list[Span]] = {}
    for source, target in links:
        found.setdefault(target, []).append(sources[source])
    for target, (own, *others) in sorted(found.items()):
        yield Word(*targets[target], own, tuple(others))


def put_back(line: str, found: Sequence[Word], tags: Sequence[Tag], text: str) -> str:
    """A translated line with its tags.

    Args:
        line: the translation.
        found: its words, in their order.
        tags: of the line in the original.
        text: the plain text of the original.
    """
    parts = list(_cut(line, found, tags, text))
    return _render(_Place(line, parts, text), tags, (0, len(line)), (0, len(parts)))


class _Place(NamedTuple):
    line: str
    words: Sequence[Word]
    text: str


def _cut(line: str, found: Sequence[Word], tags: Sequence[Tag], text: str) -> Iterator[Word]:
    """The words, of which those whose source word is cut by tags are cut, too."""
    borders = sorted({border for tag in tags for border in (tag.begin, tag.end)})
    for source, run in groupby(found, lambda word: word.source):
        if inside := borders[bisect_right(borders, source[0]) : bisect_left(borders, source[1])]:
            spans = [(word.begin, word.end) for word in run]
            yield from _parts(line, text, spans, list(pairwise((source[0], *inside, source[1]))))
        else:
            yield from run


def _parts(line: str, text: str, spans: list[Span], segments: Sequence[Span]) -> Iterator[Word]:
    """Parts of words for the segments of their source word.

    A segment that the words hold as it is has this part. The others share what is between these.
    """
    waiting: list[Span] = []
    for segment in segments:
        copies = (_copy(line, span, text, segment) for span in spans)
        number, copy = next(((n, each) for n, each in enumerate(copies) if each), (0, None))
        if copy is None:
            waiting.append(segment)
            continue
        begin, end = spans[number]
        yield from _shared([*spans[:number], (begin, copy[0])], waiting, segment[0])
        yield Word(*copy, segment)
        waiting, spans = [], [(copy[1], end), *spans[number + 1 :]]
    yield from _shared(spans, waiting, segments[-1][1])


def _shared(spans: Sequence[Span], segments: Sequence[Span], at: int) -> Iterator[Word]:
    """Parts of words for segments of a source word, in their order; without any for place `at`."""
    kept = [span for span in spans if span[0] < span[1]]
    for i, span in enumerate(kept):
        first = i * len(segments) // len(kept)
        last = max(first, (i + 1) * len(segments) // len(kept) - 1)
        source = (segments[first][0], segments[last][1]) if segments else (at, at)
        yield Word(*span, source)


def _copy(line: str, among: Span, text: str, part: Span) -> Span | None:
    """Where a part of a line holds a part of the text as it is, and not within a word or number."""
    copied = text[slice(*part)]
    at = line.find(copied, *among) if copied else -1
    while at >= 0:
        own = at, at + len(copied)
        before, after = _beside(line, own)
        within = (before + copied[0], copied[-1] + after)
        if _beside(text, part) == (before, after) or not any(
            len(two) == 2 and (two.isalpha() or two.isdigit()) for two in within
        ):
            return own
        at = line.find(copied, at + 1, among[1])
    return None


def _beside(text: str, part: Span) -> tuple[str, str]:
    """The characters before and after a part of a text; "" for white space and ends."""
    return text[max(part[0] - 1, 0) : part[0]].strip(), text[part[1] : part[1] + 1].strip()


def _render(place: _Place, tags: Sequence[Tag], chars: Span, among: Span) -> str:
    """A part of the line with tags in it.

    Args:
        place: where.
        tags: those that belong there.
        chars: the part.
        among: the words in it, first and one after the last.
    """
    # An element comes right before those that are inside of it.
    starts = [i for i, tag in enumerate(tags) if tag.depth == tags[0].depth]
    families = [tags[start:end] for start, end in pairwise([*starts, len(tags)])]
    placed: dict[int, Span] = {}  # family -> its words
    gains = [
        [1 if _meet(word.source, tag) else -1 for word in place.words[slice(*among)]]
        for tag, *_ in families
    ]
    # The longest first: they lose most where another is in their way.
    for number in sorted(range(len(families)), key=lambda number: -sum(gains[number])):
        if run := _best_run(gains[number]):
            placed[number] = among[0] + run[0], among[0] + run[1]
            for each in gains:  # words that are taken outweigh all others
                each[slice(*run)] = (run[1] - run[0]) * [-len(each) - 1]
    for number, (tag, *_) in enumerate(families):
        if number not in placed and (best := _best_other(place, tag, among, placed)):
            placed[number] = best
    spans = [
        _trimmed(place, tag, placed[number])
        if number in placed
        else (_point(place, tag, among, chars),) * 2
        for number, (tag, *_) in enumerate(families)
    ]
    made, at, after_empty = "", chars[0], False
    for number in sorted(range(len(families)), key=lambda number: spans[number][0]):
        (tag, *inner), own = families[number], placed.get(number, (among[0], among[0]))
        begin, end = (min(max(each, at), chars[1]) for each in spans[number])
        made += escape(place.line[at:begin], quote=False)
        content = _render(place, inner, (begin, end), own)
        before, after = place.line[:begin][-1:], place.line[end : end + 1]
        is_beside = (after_empty and begin == at) or _is_word(before, _OPENING)
        if tag.space_before and is_beside and made[-1:] != " ":
            made += " "
        made += tag.open + content + tag.close
        if tag.space_after and _is_word(after, CLOSING):
            made += " "
        at, after_empty = end, begin == end
    return made + escape(place.line[at : chars[1]], quote=False)


def _is_word(character: str, marks: frozenset[str]) -> bool:
    """Whether a character is beside a space: it is none, no end of the line, and no such mark."""
    return bool(character.strip()) and character not in marks


def _meet(source: Span, tag: Tag) -> bool:
    return max(source[0], tag.begin) < min(source[1], tag.end)


def _best_other(place: _Place, tag: Tag, among: Span, placed: dict[int, Span]) -> Span | None:
    """The word for a tag whose words have none of their own. A run of several gives it one away."""
    for i in range(*among):
        if any(_meet(source, tag) for source in place.words[i].others):
            holders = [number for number, (first, last) in placed.items() if first <= i < last]
            for number in holders:
                first, last = placed[number]
                if last - first == 1 or i not in (first, last - 1):
                    return None
                placed[number] = (first + 1, last) if i == first else (first, last - 1)
            return i, i + 1
    return None


def _best_run(gains: Sequence[int]) -> Span | None:
    """The run with the greatest sum above 0, first and one after the last; the first of equals."""
    best, run, total, start = 0, None, 0, 0
    for i, gain in enumerate(gains):
        if total <= 0:
            total, start = 0, i
        total += gain
        if total > best:
            best, run = total, (start, i + 1)
    return run


def _trimmed(place: _Place, tag: Tag, own: Span) -> Span:
    """The characters of words.

    If the original content is there as it is, only these; else without marks at an end where the
    original has none.
    """
    begin, end = place.words[own[0]].begin, place.words[own[1] - 1].end
    if copy := _copy(place.line, (begin, end), place.text, (tag.begin, tag.end)):
        return copy
    part = place.line[begin:end]
    if core := re.search(r"\w(?:.*\w)?", part, re.DOTALL):
        if not _is_mark(place.text[tag.begin]):
            begin += core.start()
        if not _is_mark(place.text[tag.end - 1]):
            end -= len(part) - core.end()
    return begin, end


def _is_mark(character: str) -> bool:
    return bool(re.fullmatch(r"[^\w\s]", character))


def _point(place: _Place, tag: Tag, among: Span, chars: Span) -> int:
    """Where a tag without words goes: after the word that it follows, else before the next one."""
    own = place.words[among[0] : among[1]]
    before = [word for word in own if word.source[0] < tag.begin <= word.source[1]]
    after = [word for word in own if word.source[0] >= tag.begin]
    follows = tag.begin > 0 and place.text[tag.begin - 1].strip() != ""
    if before and (follows or not after):
        return before[-1].end
    if after:
        return min(after, key=lambda word: word.source).begin
    return chars[1]
