"""Tags are taken out and put back: each once, balanced, around the words that they were around."""

import re
from html import escape
from html.parser import HTMLParser
from xml.etree import ElementTree

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from transformer_jax.errors import UserError
from transformer_jax.serving.markup import parse, put_back, words

TEXTS = st.text(st.sampled_from("ab <>&\"' .,é中\n\xa0"), max_size=8)


@st.composite
def trees(draw, depth=3, names=("b", "i", "a", "p", "x")):
    """A well-formed text with tags, its tags numbered."""
    parts = []
    for _ in range(draw(st.integers(0, 3))):
        parts.append(escape(draw(TEXTS)))
        kind = draw(st.integers(0, 2 if depth else 0))
        if kind == 1:
            parts.append("<b/>")
        elif kind == 2:
            name = draw(st.sampled_from(names))
            parts.append(f"<{name}>{draw(trees(depth=depth - 1))}</{name}>")
    return "".join(parts)


def numbered(markup: str) -> str:
    """The same, each start tag with an attribute of its own."""
    count = iter(range(1000))
    return re.sub(r"<(\w)", lambda match: f'<{match[1]} n="{next(count)}"', markup)


def translated(found, data):
    """Each line by a permutation of its words, with links to any words; and the lines alone."""
    lines, plain, at = [], [], 0
    for line, tags in zip(found.text.split("\n"), found.tags, strict=False):
        count = len(re.findall(r"[^ \t\n\r\f\v]+", line))
        target = " ".join(f"w{i}<" for i in range(data.draw(st.integers(0, 4))))
        links = [
            (data.draw(st.integers(0, count - 1)), i)
            for i in range(len(target.split()) if count else 0)
            if data.draw(st.booleans())
        ]
        lines.append(put_back(target, list(words(line, at, target, 0, links)), tags, found.text))
        plain.append(target)
        at += len(line) + 1
    return lines, plain


def joined(found, lines):
    between = found.between
    return between[0] + "".join(a + b for a, b in zip(lines, between[1:], strict=True))


@settings(deadline=None, max_examples=300)
@given(trees(), st.data(), st.sampled_from(["html", "xml"]))
def test_every_tag_is_there_once_and_the_text_is_the_translation(markup, data, form):
    markup = numbered(markup)
    found = parse(markup, form)
    lines, plain = translated(found, data)
    made = joined(found, lines)
    pattern = r"</?\w[^>]*>"
    assert sorted(re.findall(pattern, made)) == sorted(re.findall(pattern, markup))
    root = ElementTree.fromstring(f"<x>{made}</x>")  # well formed
    text = "".join(root.itertext())
    assert "".join(text.split()) == "".join("".join(plain).split())


@settings(deadline=None, max_examples=300)
@given(st.text(st.sampled_from("<>/!-&;ab i=\"'?[]\n"), max_size=40), st.data())
def test_any_text_is_html(markup, data):
    class Tags(HTMLParser):
        def __init__(self):
            super().__init__()
            self.found = []

        def handle_starttag(self, tag, attrs):
            self.found.append((tag, attrs))

    try:
        found = parse(markup, "html")
    except UserError as error:
        assert "<![" in markup and "cannot be read" in str(error)
        return
    made = joined(found, translated(found, data)[0])
    counts = []
    for each in (markup, made):
        reader = Tags()
        reader.feed(each)
        counts.append(sorted(map(str, reader.found)))
    assert counts[0] == counts[1]


def put(markup, translation, links, form="html"):
    found = parse(markup, form)
    line = put_back(
        translation, list(words(found.text, 0, translation, 0, links)), found.tags[0], found.text
    )
    return joined(found, [line])


ALONG = [(i, i) for i in range(9)]


@pytest.mark.parametrize(
    ("markup", "translation", "links", "made"),
    [
        ("The <b>red</b> dog", "Der rote Hund", ALONG, "Der <b>rote</b> Hund"),
        ("a <b>b</b> <i>c</i>", "C B A", [(2, 0), (1, 1), (0, 2)], "<i>C</i> <b>B</b> A"),
        (
            "Click <a href=x>here</a>.",
            "Hier klicken.",
            [(1, 0), (0, 1)],
            "<a href=x>Hier</a> klicken.",
        ),
        ("See <b>it</b>.", "Sieh es.", ALONG, "Sieh <b>es</b>."),
        ("The <b>hat</b> that", "Der Hut, den", ALONG, "Der <b>Hut</b>, den"),
        ("See <b>it.</b>", "Sieh es.", ALONG, "Sieh <b>es.</b>"),
        ("<p>a <b>b <i>c</i></b></p>", "A B C", ALONG, "<p>A <b>B <i>C</i></b></p>"),
        (
            "Run <code>ls &lt; -l</code> now",
            "Jetzt laufen",
            [(1, 0), (0, 1)],
            "<code>ls &lt; -l</code> Jetzt laufen",
        ),
        (
            "a <span class='x notranslate'>No <b>x</b></span> b",
            "A B",
            ALONG,
            "A <span class='x notranslate'>No <b>x</b></span> B",
        ),
        ("a &lt; b &amp; c", "A < B & C", ALONG, "A &lt; B &amp; C"),
        # the element's words are apart: the longer run
        ("<b>a b c</b> d", "A D B C", [(0, 0), (3, 1), (1, 2), (2, 3)], "A D <b>B C</b>"),
        ("<b>a<i></i></b> b", "A B", ALONG, "<b>A<i></i></b> B"),
        ("<b>a</b><img src=1> b", "A B", ALONG, "<b>A</b><img src=1> B"),
        ("a<sup><img src=1></sup> b", "A B", ALONG, "A<sup><img src=1></sup> B"),
    ],
)
def test_where_tags_go(markup, translation, links, made):
    assert put(markup, translation, links) == made


def test_blocks_are_lines():
    found = parse(
        "<div><p>One <b>x</b>.</p>\n<p>Two<br>three</p><script>a < b</script></div>", "html"
    )
    assert found.text == "One x.\nTwo\nthree"
    assert joined(found, ["1", "2", "3"]) == (
        "<div><p>1</p>\n<p>2<br>3</p><script>a < b</script></div>"
    )
    found = parse("<doc><t>One <e/>x</t><t>Two</t></doc>", "xml")
    assert found.text == "One x\nTwo"


@pytest.mark.parametrize("form", ["html", "xml"])
def test_tags_are_not_nested_without_limit(form):
    assert put("<b>" * 100 + "a" + "</b>" * 100, "A", [(0, 0)], form)
    with pytest.raises(UserError, match="more than 100 tags"):
        parse("<b>" * 101 + "a" + "</b>" * 101, form)


@pytest.mark.parametrize(
    ("markup", "message"),
    [("<a>", "not well formed"), ("a & b", "not well formed"), ("<!DOCTYPE a>", "not well formed")],
)
def test_xml_must_be_well_formed(markup, message):
    with pytest.raises(UserError, match=message):
        parse(markup, "xml")
