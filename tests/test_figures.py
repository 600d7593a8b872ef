"""Pictures that are drawn from tables and recordings show what the pages say now."""

import json
import re
from xml.etree import ElementTree

import pytest
from PIL import Image

from tests.examples import EXAMPLES
from tests.pages import ROOT, load_script, text_of
from transformer_jax.commands.main import parse

FIGURES = ROOT / "docs" / "figures"

mixers = load_script("make_mixers_figures")
documents = load_script("make_long_documents")


@pytest.mark.parametrize("name", mixers.FIGURE)
def test_a_picture_of_mixers_has_the_numbers_of_the_tables(name):
    """Otherwise: python docs/make_mixers_figures.py."""
    data_of, _ = mixers.FIGURE[name]
    drawn = json.loads(Image.open(FIGURES / name).text["Data"])
    assert drawn == data_of(mixers.PAGE.read_text(encoding="utf-8"))


def test_the_page_of_long_documents_has_the_numbers_of_the_rows():
    """Otherwise: python docs/make_long_documents.py."""
    assert json.loads(Image.open(documents.FIGURE).text["Data"]) == documents.rate_data()
    page = documents.PAGE.read_text(encoding="utf-8")
    assert documents.with_tables(page) == page


def test_the_terminal_shows_what_the_pages_say():
    terminal = load_script("make_terminal_figure")
    figure = terminal.FIGURE.read_text(encoding="utf-8")
    assert terminal.draw(terminal.recording(figure)) == figure
    ElementTree.fromstring(figure)
    quickstart, translated, _ = (
        [text for _, text, _ in output] for output in terminal.recording(figure)
    )
    _, translate, serve = terminal.SESSION
    assert translated == [EXAMPLES[line] for line in translate.lines]
    for command in (translate, serve):
        program, *arguments = command.typed.split()
        assert program == "transformer-jax" and parse(arguments)
    (score,) = (re.match(r"BLEU +([\d.]+)", line)[1] for line in quickstart if "nrefs" in line)
    assert f"| `quickstart` | AVX-512 | {score} |" in text_of("docs/results.md")
