"""Text with tags: taken apart into plain text and tags, and put together around a translation.

A block, such as `<p>` or `<br>`, ends a line of the plain text. What is within a line, such as
`<b>`, is put around the words of the translation that come from its words: around the run of words
in which these prevail, so that each tag is there once and the tags stay balanced.
"""

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from html import escape, unescape
from html.parser import HTMLParser
from typing import Any, Literal, NamedTuple
from xml.parsers import expat

from transformer_jax.data.alignments import Links
from transformer_jax.errors import UserError

Form = Literal["html", "xml"]

#: Elements that do not end a line.
_INLINE = frozenset(
    """a abbr acronym b bdi bdo big cite code data del dfn em font i img ins kbd label mark q ruby s
    samp small span strike strong sub sup time tt u var wbr""".split()  # noqa: SIM905
)
#: Elements without content and end.
_VOID = frozenset(
    "area base br col embed hr img input link meta param source track wbr".split()  # noqa: SIM905
)
#: Elements whose content is left as it is.
_OPAQUE = frozenset({"code", "script", "style"})

_SPACE = re.compile(r"[ \t\n\r\f\v\x1c-\x1e\x85\u2028\u2029]+")
#: Most tags that are open at once.
_DEEPEST = 100
#: As in `data.alignments`.
_WORD = re.compile(r"[^ \t\n\r\f\v]+")


class _Token(NamedTuple):
    kind: Literal["open", "close", "point", "text"]
    raw: str  #: as it was written
    name: str = ""  #: of the element; the characters of a text
    opaque: bool = False  #: an element whose content is left as it is


class Tag(NamedTuple):
    """A tag, or a pair of them, within a line."""

    open: str
    close: str  #: "" for one that has no end
    begin: int  #: where its content begins in the plain text
    end: int
    depth: int  #: in how many other elements of the line it is
    #: White space before and after what is shown but not translated, such as `<code>`.
    spaces: tuple[bool, bool] = (False, False)


@dataclass(frozen=True)
class Markup:
    """A text with tags, taken apart."""

    text: str  #: the plain text; each line is a part of the original
    tags: list[list[Tag]]  #: of each line, in the order of their beginnings
    between: list[str]  #: what stands before, between and after the lines, one more than lines


class Word(NamedTuple):
    """A word of a translation."""

    begin: int  #: in the translated line
    end: int
    source: tuple[int, int]  #: the place of its source word in the plain text


def parse(markup: str, form: Form) -> Markup:
    """Takes a text apart.

    Raises:
        UserError: HTML with a declaration that no parser reads; XML that is not well formed, or
            with a document type; or too many tags that are open at once.
    """
    tokens = _merged(list(_of_html(markup) if form == "html" else _of_xml(markup)))
    closes = _closes(tokens)
    blocks = _blocks(tokens, closes, form)
    lines: list[str] = []
    tags: list[list[Tag]] = []
    between, start = [""], 0
    for place in (*(i for i, is_block in enumerate(blocks) if is_block), len(tokens)):
        inside = range(start, place)
        raw = "".join(tokens[i].raw for i in inside)
        if any(tokens[i].kind == "text" and _SPACE.sub("", tokens[i].name) for i in inside):
            line, found = _line(tokens, inside, closes, sum(map(len, lines)) + len(lines))
            text = "".join(tokens[i].name for i in inside if tokens[i].kind == "text")
            before, after = (bool(_SPACE.match(each)) for each in (text, text[::-1]))
            between[-1] += " " * before
            between.append(" " * after)
            lines.append(line)
            tags.append(found)
        else:
            between[-1] += raw
        between[-1] += "".join(each.raw for each in tokens[place : place + 1])
        start = place + 1
    return Markup("\n".join(lines), tags, between)


def words(sentence: str, at: int, translation: str, target_at: int, links: Links) -> Iterator[Word]:
    """The words of a translated sentence.

    Args:
        sentence: the source.
        at: its place in the plain text.
        translation: its translation.
        target_at: the place of the translation in its line.
        links: between the words of the two.
    """
    sources, targets = (list(_WORD.finditer(each)) for each in (sentence, translation))
    for source, target in links:
        if source < len(sources) and target < len(targets):
            begin, end = sources[source].span()
            first, last = targets[target].span()
            yield Word(target_at + first, target_at + last, (at + begin, at + end))


def put_back(line: str, found: Sequence[Word], tags: Sequence[Tag], text: str) -> str:
    """A translated line with its tags.

    Args:
        line: the translation.
        found: its words, in their order.
        tags: of the line in the original.
        text: the plain text of the original.
    """
    return _render(_Place(line, found, text), tags, (0, len(line)), (0, len(found)))


class _Place(NamedTuple):
    line: str
    words: Sequence[Word]
    text: str


def _render(
    place: _Place, tags: Sequence[Tag], chars: tuple[int, int], among: tuple[int, int]
) -> str:
    """A part of the line with tags in it.

    Args:
        place: where.
        tags: those that belong there.
        chars: the part.
        among: the words in it, first and one after the last.
    """
    # An element comes right before those that are inside of it.
    families: list[list[Tag]] = []
    for tag in tags:
        if tag.depth == tags[0].depth:
            families.append([tag])
        else:
            families[-1].append(tag)
    taken: set[int] = set()
    placed: dict[int, tuple[int, int]] = {}  # family -> its words
    scores = [[_belongs(place.words[i], family[0]) for i in range(*among)] for family in families]
    # The longest first: they lose most where another is in their way.
    for number in sorted(range(len(families)), key=lambda n: -sum(scores[n])):
        free = [
            -len(scores[number]) - 1 if among[0] + i in taken else (1 if is_in else -1)
            for i, is_in in enumerate(scores[number])
        ]
        if run := _best_run(free):
            placed[number] = among[0] + run[0], among[0] + run[1]
            taken.update(range(*placed[number]))
    spans = []
    for number, family in enumerate(families):
        tag = family[0]
        if number in placed:
            begin, end = _trimmed(place, tag, placed[number])
        else:
            begin = end = _point(place, tag, among, chars)
        spans.append((begin, number, end, placed.get(number, (among[0], among[0])), family))
    made, at = "", chars[0]
    for begin, _, end, own, (tag, *inner) in sorted(spans, key=lambda each: each[:2]):
        begin, end = (min(max(each, at), chars[1]) for each in (begin, end))
        made += escape(place.line[at:begin], quote=False)
        before = tag.spaces[0] and made[-1:].strip() != ""
        content = _render(place, inner, (begin, end), own)
        after = tag.spaces[1] and place.line[end : end + 1].strip() != ""
        made += " " * before + tag.open + content + tag.close + " " * after
        at = end
    return made + escape(place.line[at : chars[1]], quote=False)


def _belongs(word: Word, tag: Tag) -> bool:
    return word.source[0] < tag.end and tag.begin < word.source[1]


def _best_run(gains: Sequence[int]) -> tuple[int, int] | None:
    """The run with the greatest sum above 0, first and one after the last; the first of equals."""
    best, run, total, start = 0, None, 0, 0
    for i, gain in enumerate(gains):
        if total <= 0:
            total, start = 0, i
        total += gain
        if total > best:
            best, run = total, (start, i + 1)
    return run


def _trimmed(place: _Place, tag: Tag, own: tuple[int, int]) -> tuple[int, int]:
    """The characters of words, without marks at an end where the original element has none."""
    begin, end = place.words[own[0]].begin, place.words[own[1] - 1].end
    part = place.line[begin:end]
    core = re.search(r"\w(?:.*\w)?", part, re.DOTALL)
    if core:
        if not _is_mark(place.text[tag.begin]):
            begin += core.start()
        if not _is_mark(place.text[tag.end - 1]):
            end -= len(part) - core.end()
    return begin, end


def _is_mark(character: str) -> bool:
    return bool(re.fullmatch(r"[^\w\s]", character))


def _point(place: _Place, tag: Tag, among: tuple[int, int], chars: tuple[int, int]) -> int:
    """Where a tag without words goes: after the word that it follows, else before the next one."""
    own = place.words[among[0] : among[1]]
    before = [word for word in own if word.source[0] < tag.begin <= word.source[1]]
    after = [word for word in own if word.source[0] >= tag.begin]
    follows = tag.begin > 0 and place.text[tag.begin - 1].strip() != ""
    if before and (follows or not after):
        return before[-1].end
    if after:
        nearest = min(word.source for word in after)
        return next(word.begin for word in after if word.source == nearest)
    return chars[1]


def _line(
    tokens: Sequence[_Token], inside: range, closes: dict[int, int], offset: int
) -> tuple[str, list[Tag]]:
    """The plain text of a line, and its tags; `offset`: of the line in the whole text."""
    text, spaced = "", False  # `spaced`: white space is due before the next character
    depth = 0
    order: list[tuple[int, Tag]] = []

    def due() -> int:
        return offset + len(text) + (spaced and bool(text))

    for i in inside:
        token = tokens[i]
        if token.kind == "text":
            for part in re.split(f"({_SPACE.pattern})", token.name):
                if _SPACE.fullmatch(part):
                    spaced = True
                elif part:
                    text += " " * (spaced and bool(text)) + part
                    spaced = False
        elif token.kind == "open" and i in closes:
            order.append((i, Tag(token.raw, tokens[closes[i]].raw, due(), due(), depth)))
            depth += 1
        elif token.kind == "close" and i in closes.values():
            number = next(n for n, (first, _) in enumerate(order) if closes.get(first) == i)
            first, tag = order[number]
            end = max(offset + len(text), tag.begin)
            depth -= 1
            order[number] = first, tag._replace(end=end)
        else:
            following = tokens[i + 1] if i + 1 in inside else _Token("text", "")
            is_spaced = following.kind == "text" and bool(_SPACE.match(following.name))
            spaces = (spaced, is_spaced) if token.opaque else (False, False)
            order.append((i, Tag(token.raw, "", due(), due(), depth, spaces)))
    end = offset + len(text)
    return text, [
        tag._replace(begin=min(tag.begin, end), end=min(tag.end, end)) for _, tag in order
    ]


def _merged(tokens: Sequence[_Token]) -> list[_Token]:
    """The tokens, those of an element whose content is left as it is as one of them."""
    made: list[_Token] = []
    depth, name, raws = 0, "", [""]
    for token in tokens:
        if depth:
            raws.append(token.raw)
            depth += (token.name == name) * {"open": 1, "close": -1}.get(token.kind, 0)
            if not depth:
                made.append(_Token("point", "".join(raws), name, opaque=True))
        elif token.kind == "open" and token.opaque:
            depth, name, raws = 1, token.name, [token.raw]
        else:
            made.append(token)
    return [*made, _Token("point", "".join(raws), name, opaque=True)] if depth else made


def _closes(tokens: Sequence[_Token]) -> dict[int, int]:
    """The place of each start tag -> that of its end tag; those that have none are left out."""
    closes, waiting = {}, []
    for i, token in enumerate(tokens):
        if token.kind == "open":
            waiting.append(i)
        elif token.kind == "close" and any(tokens[j].name == token.name for j in waiting):
            while tokens[waiting[-1]].name != token.name:
                waiting.pop()
            if len(waiting) > _DEEPEST:
                raise UserError(f"more than {_DEEPEST} tags are open at once")
            closes[waiting.pop()] = i
    return closes


def _blocks(tokens: Sequence[_Token], closes: dict[int, int], form: Form) -> list[bool]:
    """Which tokens end a line."""
    if form == "html":
        named = [token.kind != "text" and token.name != "" for token in tokens]
        blocks = [
            is_named and token.name not in _INLINE
            for is_named, token in zip(named, tokens, strict=True)
        ]
    else:
        # An element is within a line if there is text beside it.
        blocks = [False] * len(tokens)
        beside: list[list[int]] = [[]]
        mixed = [False]
        for i, token in enumerate(tokens):
            if token.kind == "text":
                mixed[-1] = mixed[-1] or bool(token.name.strip())
            elif token.kind == "close":
                _mark(blocks, beside.pop(), is_block=not mixed.pop())
                beside[-1].append(i)
            else:
                beside[-1].append(i)
                if token.kind == "open":
                    beside.append([])
                    mixed.append(False)
        _mark(blocks, beside.pop(), is_block=not mixed.pop())
    for first, last in closes.items():
        if any(blocks[first + 1 : last]):
            blocks[first] = blocks[last] = True
    return blocks


def _mark(blocks: list[bool], places: Iterable[int], *, is_block: bool) -> None:
    for place in places:
        blocks[place] = is_block


class _Reader(HTMLParser):
    def __init__(self) -> None:
        super().__init__(convert_charrefs=False)
        self.tokens: list[_Token] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        kept = dict(attrs)
        opaque = tag in _OPAQUE or kept.get("translate") == "no"
        opaque = opaque or "notranslate" in (kept.get("class") or "").split()
        kind: Any = "point" if tag in _VOID else "open"
        self.tokens.append(_Token(kind, self.get_starttag_text() or "", tag, opaque))

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tokens.append(_Token("point", self.get_starttag_text() or "", tag))

    def handle_endtag(self, tag: str) -> None:
        self.tokens.append(_Token("close", f"</{tag}>", tag))

    def handle_data(self, data: str) -> None:
        self.tokens.append(_Token("text", data, data))

    def handle_entityref(self, name: str) -> None:
        self.tokens.append(_Token("text", f"&{name};", unescape(f"&{name};")))

    def handle_charref(self, name: str) -> None:
        self.handle_entityref(f"#{name}")

    def handle_comment(self, data: str) -> None:
        self.tokens.append(_Token("point", f"<!--{data}-->"))

    def handle_decl(self, decl: str) -> None:
        self.tokens.append(_Token("point", f"<!{decl}>", "!doctype"))

    def handle_pi(self, data: str) -> None:
        self.tokens.append(_Token("point", f"<?{data}>"))

    def unknown_decl(self, data: str) -> None:
        self.tokens.append(_Token("point", f"<![{data}]>"))


def _of_html(markup: str) -> list[_Token]:
    reader = _Reader()
    try:
        reader.feed(markup)
        reader.close()
    except AssertionError as error:  # such as "expected name token at '<![;'"
        raise UserError(f"the HTML cannot be read: {error}") from error
    return reader.tokens


def _of_xml(markup: str) -> Iterator[_Token]:
    start = re.match(r"\s*<\?xml\s[^>]*\?>", markup)
    head = start[0] if start else ""
    if head:
        yield _Token("point", head, "?xml")
    content = f"<x>{markup[len(head) :]}</x>".encode()
    events: list[tuple[int, Any, str]] = []
    parser = expat.ParserCreate("utf-8")
    parser.buffer_text = False

    def note(kind: Any, name: str = "") -> None:
        events.append((parser.CurrentByteIndex, kind, name))

    def refuse(*_: Any) -> None:
        raise UserError("the XML has a document type, which is not read: leave it out")

    parser.StartElementHandler = lambda name, _: note("open", name)
    parser.EndElementHandler = lambda name: note("close", name)
    parser.CharacterDataHandler = lambda data: note("text", data)
    parser.CommentHandler = lambda _: note("point")
    parser.ProcessingInstructionHandler = lambda *_: note("point")
    parser.StartCdataSectionHandler = lambda: note("text")
    parser.EndCdataSectionHandler = lambda: note("text")
    parser.StartDoctypeDeclHandler = refuse
    try:
        parser.Parse(content, True)
    except expat.ExpatError as error:
        raise UserError(f"the XML is not well formed: {expat.ErrorString(error.code)}") from error
    ends = [begin for begin, *_ in events[1:]]
    is_empty = False
    for (begin, kind, name), end in zip(events[1:-1], ends[1:], strict=True):
        raw = content[begin:end].decode()
        if kind == "open" and not raw:
            is_empty = True  # `<a/>`: its two events are at one place
        else:
            yield _Token("point" if is_empty else kind, raw, name)
            is_empty = False
