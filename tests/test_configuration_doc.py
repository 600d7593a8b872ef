import runpy
from pathlib import Path

DOCS = Path(__file__).parents[1] / "docs"


def test_the_page_is_what_the_config_classes_say():
    page = runpy.run_path(str(DOCS / "make_configuration.py"))["page"]()
    written = (DOCS / "configuration.md").read_text(encoding="utf-8")
    assert page == written, "run: python docs/make_configuration.py"
