import re
import runpy
from pathlib import Path

DOCS = Path(__file__).parents[1] / "docs"


def page():
    return runpy.run_path(str(DOCS / "make_configuration.py"))["page"]()


def test_the_page_is_what_the_config_classes_say():
    written = (DOCS / "configuration.md").read_text(encoding="utf-8")
    assert page() == written, "run: python docs/make_configuration.py"


def test_every_key_and_every_option_is_described():
    rows = re.findall(r"^\| `([\w.]+)` \| [^|]* \| (.*) \|$", page(), re.MULTILINE)
    assert len(rows) > 200
    limits = r"(at least|at most|more than|less than|a multiple of) \d|`|a variant, see below|$"
    assert [key for key, text in rows if re.match(limits, text)] == []
