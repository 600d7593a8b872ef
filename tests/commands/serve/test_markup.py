"""Tags are taken out and put back: each once, balanced, around the words that they were around."""

import re
from html import escape, unescape
from html.parser import HTMLParser
from xml.etree import ElementTree

import pytest
from hypothesis import given, settings, strategies as st

from transformer_jax.commands.serve.markup import parse
from transformer_jax.commands.serve.tags import put_back, words
from transformer_jax.errors import UserError

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


def joined(found, lines):
    between = found.between
    return between[0] + "".join(a + b for a, b in zip(lines, between[1:], strict=True))


def by(translate, found):
    """With `translate(line)`, a translation and its links between words, for each line."""
    lines, at = [], 0
    for line, tags in zip(found.text.split("\n"), found.tags, strict=False):
        target, links = translate(line)
        lines.append(put_back(target, list(words(line, at, target, 0, links)), tags, found.text))
        at += len(line) + 1
    return joined(found, lines)


def translated(found, data):
    """Each line by words of its own, with links to any words; and the lines alone."""
    plain = []

    def translate(line):
        count = len(re.findall(r"[^ \t\n\r\f\v]+", line))
        plain.append(" ".join(f"w{i}<" for i in range(data.draw(st.integers(0, 4)))))
        links = [
            (data.draw(st.integers(0, count - 1)), i)
            for i in range(len(plain[-1].split()) if count else 0)
            if data.draw(st.booleans())
        ]
        return plain[-1], links

    return by(translate, found), plain


@settings(max_examples=300)
@given(trees(), st.data(), st.sampled_from(["html", "xml"]))
def test_every_tag_is_there_once_and_the_text_is_the_translation(markup, data, form):
    markup = numbered(markup)
    made, plain = translated(parse(markup, form), data)
    pattern = r"</?\w[^>]*>"
    assert sorted(re.findall(pattern, made)) == sorted(re.findall(pattern, markup))
    root = ElementTree.fromstring(f"<x>{made}</x>")  # well formed
    text = "".join(root.itertext())
    assert "".join(text.split()) == "".join("".join(plain).split())


@settings(max_examples=300)
@given(st.text(st.sampled_from("<>/!-&;ab i=\"'?[]\n"), max_size=40), st.data())
def test_any_text_is_html(markup, data):
    def tags(text):
        found, reader = [], HTMLParser()
        reader.handle_starttag = lambda *tag: found.append(str(tag))
        reader.feed(text)
        return sorted(found)

    try:
        found = parse(markup, "html")
    except UserError as error:
        assert "<![" in markup and "cannot be read" in str(error)
        return
    made, _ = translated(found, data)
    assert tags(made) == tags(markup)


def by_itself(markup, form="html"):
    """Translated by what gives every word as it is."""
    return by(
        lambda line: (line, [(i, i) for i in range(len(line.encode().split()))]),
        parse(markup, form),
    )


def contents(markup):
    """The text in each element, without white space."""
    root = ElementTree.fromstring(f"<x>{markup}</x>")
    return {each.get("n"): "".join("".join(each.itertext()).split()) for each in root.iter()}


@settings(max_examples=300)
@given(trees(), st.sampled_from(["html", "xml"]))
def test_what_is_copied_keeps_its_tags(markup, form):
    markup = numbered(markup)
    assert contents(by_itself(markup, form)) == contents(markup)


@settings(max_examples=300)
@given(
    st.lists(st.sampled_from(["ab", "c", "<img/>", "<i></i>", ",", ".", " ", "\n"]), max_size=12),
    st.sampled_from(["html", "xml"]),
)
def test_white_space_beside_tags_without_content_is_neither_lost_nor_made_up(parts, form):
    markup = re.sub(r"\s+([,.])", r"\1", "".join(parts))  # no mark has a space before it
    assert by_itself(markup, form).split() == markup.split()


@settings(max_examples=300)
@given(st.text(st.sampled_from('&;#xamplt1 .é>"\n'), max_size=12))
def test_a_sign_that_begins_no_entity_is_itself(text):
    found = parse(text, "html")
    assert found.text == parse(escape(unescape(text)), "html").text
    assert unescape(by_itself(text)).split() == unescape(text).split()


def put(markup, translation, links=None, form="html"):
    """With links between words of one line; None: the first to the first, and so on."""
    found = parse(markup, form)
    if links is None:
        links = [(i, i) for i in range(min(map(len, (found.text.split(), translation.split()))))]
    return by(lambda _: (translation, links), found)


ALONG = None
SWAPPED = [(1, 0), (0, 1)]
SECOND_IN_TWO = [(0, 0), (1, 1), (1, 2)]
AFTER = [(0, 0), (2, 1), (1, 2)]
BIG = [(0, 0), (2, 1), (2, 2), (1, 1)]
LEFT_ALONE = "<span class='x notranslate'>No <b>x</b></span>"
NOTE = "<sup><a href=x>[1]</a></sup>"


@pytest.mark.parametrize(
    ("markup", "translation", "links", "made"),
    [
        ("The <b>red</b> dog", "Der rote Hund", ALONG, "Der <b>rote</b> Hund"),
        ("a <b>b</b> <i>c</i>", "C B A", [(2, 0), (1, 1), (0, 2)], "<i>C</i> <b>B</b> A"),
        ("Click <a href=x>here</a>.", "Hier klicken.", SWAPPED, "<a href=x>Hier</a> klicken."),
        ("See <b>it</b>.", "Sieh es.", ALONG, "Sieh <b>es</b>."),
        ("The <b>hat</b> that", "Der Hut, den", ALONG, "Der <b>Hut</b>, den"),
        ("See <b>it.</b>", "Sieh es.", ALONG, "Sieh <b>es.</b>"),
        ("<p>a <b>b <i>c</i></b></p>", "A B C", ALONG, "<p>A <b>B <i>C</i></b></p>"),
        ("Run <code>a &lt; b</code> now", "Los geht", SWAPPED, "<code>a &lt; b</code> Los geht"),
        (f"a {LEFT_ALONE} b", "A B", ALONG, f"A {LEFT_ALONE} B"),
        ("a &lt; b &amp; c", "A < B & C", ALONG, "A &lt; B &amp; C"),
        # the element's words are apart: the longer run
        ("<b>a b c</b> d", "A D B C", [(0, 0), (3, 1), (1, 2), (2, 3)], "A D <b>B C</b>"),
        ("<b>a<i></i></b> b", "A B", ALONG, "<b>A<i></i></b> B"),
        ("<b>a</b><img src=1> b", "A B", ALONG, "<b>A</b><img src=1> B"),
        ("a<sup><img src=1></sup> b", "A B", ALONG, "A<sup><img src=1></sup> B"),
        # a copied part of a word keeps its tag, the rest of the word those of the rest
        (f"a dog{NOTE}.", "ein Hund[1].", ALONG, f"ein Hund{NOTE}."),
        ("<i>port</i><sup>[1]</sup> a", "porto[1] A", ALONG, "<i>porto</i><sup>[1]</sup> A"),
        ("m<sup>2</sup> b", "B m2,", SWAPPED, "B m<sup>2</sup>,"),
        ("word<sup>1</sup>", "Wort 1", [(0, 0), (0, 1)], "Wort <sup>1</sup>"),
        ("Click <b>Save</b> to", "Klicken auf Save", SECOND_IN_TWO, "Klicken auf <b>Save</b>"),
        ("<b>My dog</b><b>is</b>", "Mein Hund ist", SECOND_IN_TWO, "<b>Mein Hund</b> <b>ist</b>"),
        # parts of which none is copied share the words of theirs, in their order
        ("a news<b>paper</b> x", "eine Zeitung X", ALONG, "eine <b>Zeitung</b> X"),
        ("rain<b>bow</b> a", "arco iris A", [(0, 0), (0, 1), (1, 2)], "arco <b>iris</b> A"),
        # what has no content takes no word
        ("foo<img src=1>bar <b>a</b>", "früh A", ALONG, "früh<img src=1> <b>A</b>"),
        ("<b>foo</b><img src=1><i>bar</i>", "früh", ALONG, "<b>früh</b><img src=1><i></i>"),
        # "big" has no word of its own, but "grande" is nearest to it
        ("The <b>big</b> dog", "O grande cão", BIG, "O <b>grande</b> cão"),
        ("The <i>big</i> <b>dog</b>", "O grande cão", BIG, "O <i>grande</i> <b>cão</b>"),
        ("The <i>big</i> <b>dog</b>", "O cão", [(0, 0), (2, 1), (1, 1)], "O <i></i><b>cão</b>"),
        # white space beside tags without content
        ("The <img src=1> dog", "O cão", ALONG, "O <img src=1> cão"),
        ("Open <code>x</code>", "Öffne", ALONG, "Öffne <code>x</code>"),
        ("<code>ls</code> lists <b>it</b>", "listet es", ALONG, "<code>ls</code> listet <b>es</b>"),
        ("It is (<code>f()</code>) now", "Es () ist", AFTER, "Es (<code>f()</code>) ist"),
    ],
)
def test_where_tags_go(markup, translation, links, made):
    assert put(markup, translation, links) == made


@pytest.mark.parametrize(
    ("markup", "lines"),
    [
        ('<p translate="no">R&D and Q&A; ok</p>', []),
        ("<code>a &b c</code>", []),
        ("<pre>line one\n  line two\n\tline three\n</pre>", ["line one", "line two", "line three"]),
        ("<textarea>a\r\n\r\nb</textarea>", ["a", "", "b"]),
        ("a <pre>b <b>c\nd</b></pre>", ["a", "b", "c", "d"]),
        ("He says <b>(loud)</b> now", ["He says (loud) now"]),
        ("Water is H<sub>2</sub>O, 5 m<sup>2</sup>.", ["Water is H2O, 5 m2."]),
        ("<kbd>Ctrl</kbd>+<kbd>C</kbd>", ["Ctrl+C"]),
        ("Press <my-button>Save</my-button> <output>x</output>!", ["Press Save x!"]),
        ("<p>Open <button>a</button> <code>b</code></p>", ["Open a"]),
        ("<p>\n  Hello\n</p>", ["Hello"]),
        ("a <script>b", ["a"]),
    ],
)
def test_html_is_left_as_it_was_written(markup, lines):
    assert parse(markup, "html").text == "\n".join(lines)
    assert by_itself(markup) == markup


@pytest.mark.parametrize(
    ("markup", "lines"),
    [
        ("The old house\nThe new <b>garden</b>", ["The old house", "The new garden"]),
        ("See <b>the\r\n old</b> dog", ["See", "the", "old", "dog"]),
        ("a\n \n<b>c</b> d\n\n", ["a", "", "c d", ""]),
        ('Hello <x id="1"/>, you have <x id="2"/> new.', ["Hello, you have new."]),
        ('<?xml version="1.0"?>\n<!DOCTYPE a SYSTEM "x>y">\n<a>The dog.</a>', ["The dog."]),
        ('<?xml version="1.0"?>The <b>dog</b>.', ["The dog."]),
    ],
)
def test_xml_is_left_as_it_was_written(markup, lines):
    assert parse(markup, "xml").text == "\n".join(lines)
    assert by_itself(markup, "xml") == markup


@pytest.mark.parametrize(
    ("form", "markup", "made"),
    [
        ("xml", "<a><![CDATA[x < y\n ]]></a>", "<a>x &lt; y\n </a>"),
        ("html", "He says<b> (very loud)</b> now", "He says <b>(very loud)</b> now"),
        ("html", 'It says:<b> "dog"</b>.', 'It says: <b>"dog"</b>.'),
        ("html", "R&D <b>a</b>, b=1&c=2 &amp", "R&amp;D <b>a</b>, b=1&amp;c=2 &amp;"),
    ],
)
def test_marks_stay_where_they_are(form, markup, made):
    assert by_itself(markup, form) == made


def test_blocks_are_lines():
    markup = "<div><p>{}</p>\n<p>{}<br>{}</p><script>a < b</script></div>"
    found = parse(markup.format("One <b>x</b>.", "Two", "three"), "html")
    assert found.text == "One x.\nTwo\nthree"
    assert joined(found, ["1", "2", "3"]) == markup.format(1, 2, 3)
    assert parse("<doc><t>One <e/>x</t><t>Two</t></doc>", "xml").text == "One x\nTwo"


@pytest.mark.parametrize("form", ["html", "xml"])
def test_tags_are_not_nested_without_limit(form):
    assert put("<b>" * 100 + "a" + "</b>" * 100, "A", [(0, 0)], form)
    with pytest.raises(UserError, match="more than 100 tags"):
        parse("<b>" * 101 + "a" + "</b>" * 101, form)


@pytest.mark.parametrize(
    ("markup", "message"),
    [
        ("<a>", "not well formed"),
        ("a & b", "not well formed"),
        ("a<!DOCTYPE a>", "not well formed"),
        ("<!DOCTYPE a [<!ENTITY b 'c'>]><a/>", "with declarations"),
    ],
)
def test_xml_must_be_well_formed(markup, message):
    with pytest.raises(UserError, match=message):
        parse(markup, "xml")
