"""Runs every block of docs/attention.md: a section's blocks in order, after the page's first."""

import re

import pytest

from tests.pages import ROOT, blocks_of

PAGE = ROOT / "docs" / "attention.md"

INTRODUCTION, *SECTIONS = re.split(r"^## ", PAGE.read_text(encoding="utf-8"), flags=re.MULTILINE)


@pytest.mark.parametrize("section", SECTIONS, ids=lambda section: section.partition("\n")[0])
def test_what_the_page_says_is_so(section):
    blocks = blocks_of(section, "python")
    assert blocks, "a section without a test"
    assert any("assert" in block for block in blocks)
    names: dict[str, object] = {}
    for block in [*blocks_of(INTRODUCTION, "python"), *blocks]:
        exec(compile(block, str(PAGE), "exec"), names)


def test_every_figure_is_there_and_drawn_by_the_script():
    script = (PAGE.parent / "make_attention_figures.py").read_text(encoding="utf-8")
    figures = re.findall(r"\]\((figures/[\w.]+)\)", PAGE.read_text(encoding="utf-8"))
    assert figures
    for figure in figures:
        assert (PAGE.parent / figure).is_file(), figure
        assert figure.rpartition("/")[2] in script, figure
