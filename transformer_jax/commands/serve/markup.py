"""Text with tags, taken apart into plain text and tags; `tags` puts them together again.

A block, such as `<p>` or `<br>`, ends a line of the plain text, and so does a line break where
lines are kept: in XML, and in HTML within `<pre>`. What is within a line, such as `<b>`, has a
place in it. All that is not translated is cut from the text as it was written.
"""

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from html import unescape
from html.parser import HTMLParser
from itertools import pairwise
from typing import Any, Literal, NamedTuple
from xml.parsers import expat

from transformer_jax.errors import UserError, as_user_error

Form = Literal["html", "xml"]

#: Elements that end a line. All others are laid out within one, unknown ones too.
_BLOCKS = frozenset(
    """!doctype address article aside blockquote body br caption center col colgroup dd details
    dialog dir div dl dt fieldset figcaption figure footer form frame frameset h1 h2 h3 h4 h5 h6
    head header hgroup hr html legend li listing main menu nav noframes ol optgroup option p
    plaintext pre search section summary table tbody td textarea tfoot th thead title tr ul
    xmp""".split()  # noqa: SIM905
)
#: Elements without content and end.
_VOID = frozenset(
    "area base br col embed hr img input link meta param source track wbr".split()  # noqa: SIM905
)
#: Elements whose content is left as it is.
_OPAQUE = frozenset({"code", "script", "style"})
#: Elements whose line breaks are kept.
_PREFORMATTED = frozenset({"pre", "textarea", "listing", "plaintext", "xmp"})

_SPACE = re.compile(r"[ \t\n\r\f\v\x1c-\x1e\x85\u2028\u2029]+")
_PARTS = re.compile(f"({_SPACE.pattern})")
_LINE_BREAK = re.compile(r"(\r\n|[\r\n])")
#: What stands before the content of an XML text. A document type with declarations is not read.
_HEAD = re.compile(
    r"""(?:\s*(?:<\?.*?\?>|<!--.*?-->|<!DOCTYPE(?:[^>\["']|"[^"]*"|'[^']*')*>))*""", re.DOTALL
)
#: Marks before which there is no space.
CLOSING = frozenset(".,;:!?…)]}»”’%、。，！？：；）」』】")
#: Most tags that are open at once.
_DEEPEST = 100

Kind = Literal["open", "close", "point", "text", "break"]


class _Token(NamedTuple):
    kind: Kind
    raw: str  #: as it was written
    name: str = ""  #: of the element; the characters of a text
    opaque: bool = False  #: an element whose content is left as it is


@dataclass
class Tag:
    """A tag, or a pair of them, within a line."""

    open: str
    close: str  #: "" for one that has no end
    begin: int  #: where its content begins in the plain text
    end: int
    depth: int  #: in how many other elements of the line it is
    #: Of a tag without content: whether white space, or an end of the line, is before and after it.
    space_before: bool = False
    space_after: bool = False


@dataclass(frozen=True)
class Markup:
    """A text with tags, taken apart."""

    text: str  #: the plain text; each line is a part of the original, or blank as there
    tags: list[list[Tag]]  #: of each line, in the order of their beginnings
    between: list[str]  #: what stands before, between and after the lines, one more than lines


def parse(markup: str, form: Form) -> Markup:
    """Takes a text apart.

    Raises:
        UserError: HTML with a declaration that no parser reads; XML that is not well formed, or
            whose document type has declarations; or too many tags that are open at once.
    """
    head = ""
    if form == "xml" and (found := _HEAD.match(markup)):
        head, markup = found[0], markup[found.end() :]
    tokens = _of_html(markup) if form == "html" else list(_of_xml(markup))
    closes = _closes(tokens)
    blocks = _blocks(tokens, closes, form)
    lines: list[_Line] = []
    between, start, offset = [head], 0, 0
    for place in (*(i for i, is_block in enumerate(blocks) if is_block), len(tokens)):
        inside = range(start, place)
        ends = tokens[max(start - 1, 0) : start] + tokens[place : place + 1]
        if any(tokens[i].kind == "text" and _SPACE.sub("", tokens[i].name) for i in inside):
            lines.append(_line(tokens, inside, closes, offset))
            between[-1] += lines[-1].before
            between.append(lines[-1].gap)
            offset += len(lines[-1].text) + 1
        else:
            between[-1] += "".join(tokens[i].raw for i in inside)
            if [each.kind for each in ends] == ["break", "break"]:
                lines.append(_Line(offset))  # a blank one
                between.append("")
                offset += 1
        between[-1] += "".join(each.raw for each in tokens[place : place + 1])
        start = place + 1
    return Markup("\n".join(line.text for line in lines), [line.tags for line in lines], between)


class _Line:
    """A line of plain text that grows by what is shown: characters, and tags without content.

    Args:
        offset: its place in the whole text.
    """

    def __init__(self, offset: int) -> None:
        self.text = ""
        self.tags: list[Tag] = []
        self.before = ""  #: white space before what is shown first
        self.gap = ""  #: white space after what was shown last
        self.shown = 0
        self._offset = offset
        self._is_due = False  # white space since the last character
        self._last: Tag | None = None  # the tag without content that was shown last

    @property
    def place(self) -> int:
        """Of the next character in the whole text."""
        return self._offset + len(self.text) + (self._is_due and bool(self.text))

    def add_text(self, name: str) -> None:
        for part in filter(None, _PARTS.split(name)):
            if _SPACE.match(part):
                self.gap += part
                self._is_due = True
                continue
            if self._last and not self.gap and part[0] in CLOSING:
                # A mark follows a tag that has a space before it: no space to the word before.
                self._is_due = False
                self._end_tags()
            self.show(None)
            self.text += " " * (self._is_due and bool(self.text)) + part
            self._is_due = False

    def show(self, tag: Tag | None) -> None:
        """Notes that a tag without content is shown, or characters."""
        if not self.shown:
            self.before = self.gap
        elif self.gap and self._last:
            self._last.space_after = True
        self.shown, self.gap, self._last = self.shown + 1, "", tag

    def finish(self) -> None:
        """Ends the line."""
        if self._last:
            self._last.space_after = True
        self._end_tags()
        for tag in self.tags:  # its content begins after a space
            first = self.text[tag.begin - self._offset : tag.end - self._offset][:1]
            tag.begin += first == " "

    def _end_tags(self) -> None:
        """No tag reaches beyond the characters."""
        end = self._offset + len(self.text)
        for tag in self.tags:
            tag.begin, tag.end = min(tag.begin, end), min(tag.end, end)


def _line(tokens: Sequence[_Token], inside: range, closes: dict[int, int], offset: int) -> _Line:
    """The plain text of a line, and its tags."""
    line = _Line(offset)
    opened: dict[int, tuple[Tag, int, bool]] = {}  # end tag -> its tag, and what was before it
    for i in inside:
        token, is_spaced = tokens[i], bool(line.gap) or not line.shown
        if token.kind == "text":
            line.add_text(token.name)
        elif i in opened:
            tag, shown, is_spaced = opened.pop(i)
            if line.shown == shown:
                tag.space_before = is_spaced
                line.show(tag)
            tag.end = max(offset + len(line.text), tag.begin)
        else:
            close = tokens[closes[i]].raw if i in closes else ""
            tag = Tag(token.raw, close, line.place, line.place, depth=len(opened))
            line.tags.append(tag)
            if i in closes:
                opened[closes[i]] = tag, line.shown, is_spaced
            else:
                tag.space_before = is_spaced
                line.show(tag)
    line.finish()
    return line


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
    blocks = [token.kind == "break" for token in tokens]
    if form == "html":
        for i, token in enumerate(tokens):
            blocks[i] |= token.kind != "text" and token.name in _BLOCKS
    else:
        # An element is within a line if there is text beside it.
        parents, around, mixed = list[int](), [-1], set[int]()
        for i, token in enumerate(tokens):
            if token.kind == "close":
                around.pop()
            parents.append(around[-1])
            if token.kind == "open":
                around.append(i)
            elif token.kind == "text" and token.name.strip():
                mixed.add(around[-1])
        for i, token in enumerate(tokens):
            blocks[i] |= token.kind != "text" and parents[i] not in mixed
    for first, last in closes.items():
        if any(blocks[first + 1 : last]):
            blocks[first] = blocks[last] = True
    return blocks


class _Reader(HTMLParser):
    """Notes where each part of a text begins: its place, kind, name, and whether it is opaque."""

    def __init__(self, markup: str) -> None:
        super().__init__()
        self.parts: list[tuple[int, Kind, str, bool]] = [(0, "text", "", False)]
        self._lines = [0, *(match.end() for match in re.finditer("\n", markup))]

    def _note(self, kind: Kind, name: str = "", opaque: bool = False) -> None:
        line, column = self.getpos()
        self.parts.append((self._lines[line - 1] + column, kind, name, opaque))

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        kept = dict(attrs)
        opaque = tag in _OPAQUE or kept.get("translate") == "no"
        opaque = opaque or "notranslate" in (kept.get("class") or "").split()
        self._note("point" if tag in _VOID else "open", tag, opaque)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self._note("point", tag)

    def handle_endtag(self, tag: str) -> None:
        self._note("close", tag)

    def handle_data(self, data: str) -> None:
        self._note("text")

    def handle_comment(self, data: str) -> None:
        self._note("point")

    def handle_decl(self, decl: str) -> None:
        self._note("point", "!doctype")

    handle_pi = unknown_decl = handle_comment


def _of_html(markup: str) -> list[_Token]:
    reader = _Reader(markup)
    with as_user_error("the HTML cannot be read:", AssertionError):  # such as of '<![;'
        reader.feed(markup)
        reader.close()
    end: tuple[int, Kind, str, bool] = (len(markup), "text", "", False)
    tokens = _merged(
        _Token(kind, markup[begin:following], name, opaque)
        for (begin, kind, name, opaque), (following, *_) in pairwise([*reader.parts, end])
    )
    if tokens and tokens[-1].kind == "point" and not tokens[-1].raw.endswith(">"):
        tokens[-1] = tokens[-1]._replace(kind="break")  # it has no end: it stays the last
    return list(_with_breaks(tokens))


def _merged(tokens: Iterable[_Token]) -> list[_Token]:
    """The tokens, with one for each text, and one for an element whose content is left as it is."""
    made: list[_Token] = []
    depth, name, raws = 0, "", [""]
    for token in tokens:
        if depth:
            raws.append(token.raw)
            depth += (token.name == name) * {"open": 1, "close": -1}.get(token.kind, 0)
            if not depth:
                made.append(_Token("point", "".join(raws), name))
        elif token.kind == "open" and token.opaque:
            depth, name, raws = 1, token.name, [token.raw]
        elif token.kind == "text" and made and made[-1].kind == "text":
            made[-1] = _Token("text", made[-1].raw + token.raw)
        elif token.raw:
            made.append(token)
    return [*made, _Token("break", "".join(raws))] if depth else made


def _with_breaks(tokens: Iterable[_Token]) -> Iterator[_Token]:
    """The tokens, with the characters of texts, and line breaks apart where they are kept."""
    depth = 0
    for token in tokens:
        if token.kind != "text":
            is_own = token.name in _PREFORMATTED
            depth = max(0, depth + is_own * {"open": 1, "close": -1}.get(token.kind, 0))
            yield token
            continue
        for raw in filter(None, _LINE_BREAK.split(token.raw) if depth else [token.raw]):
            kind: Kind = "break" if depth and _LINE_BREAK.match(raw) else "text"
            yield _Token(kind, raw, unescape(raw))


def _of_xml(markup: str) -> Iterator[_Token]:
    if re.match(r"\s*<!DOCTYPE", markup):
        raise UserError("the XML has a document type with declarations, which are not read")
    content = f"<x>{markup}</x>".encode()
    events: list[tuple[int, Any, str]] = []
    parser = expat.ParserCreate("utf-8")
    parser.buffer_text = False

    def note(kind: Any, name: str = "") -> None:
        events.append((parser.CurrentByteIndex, kind, name))

    parser.StartElementHandler = lambda name, _: note("open", name)
    parser.EndElementHandler = lambda name: note("close", name)
    parser.CharacterDataHandler = lambda data: note("text", data)
    parser.CommentHandler = lambda _: note("point")
    parser.ProcessingInstructionHandler = lambda *_: note("point")
    parser.StartCdataSectionHandler = lambda: note("cdata")
    parser.EndCdataSectionHandler = lambda: note("cdata")
    try:
        parser.Parse(content, True)
    except expat.ExpatError as error:
        raise UserError(f"the XML is not well formed: {expat.ErrorString(error.code)}") from error
    is_empty = False
    for (begin, kind, name), (end, *_) in pairwise(events[1:]):
        raw = content[begin:end].decode()
        if kind == "text":
            yield _Token("break" if name == "\n" else "text", raw, name)
        elif kind == "open" and not raw:
            is_empty = True  # `<a/>`: its two events are at one place
        elif kind != "cdata":  # its text may be of several lines: written as other text
            yield _Token("point" if is_empty else kind, raw, name)
            is_empty = False
