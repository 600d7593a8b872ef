"""The Markdown pages of the repository, as tests read them."""

import importlib.util
import re
import shlex
from pathlib import Path
from types import ModuleType

ROOT = Path(__file__).parents[1]
#: Paths of all pages, relative to the root. The changelog names what no longer exists.
PAGES = ["README.md", *sorted(f"docs/{path.name}" for path in (ROOT / "docs").glob("*.md"))]
PROGRAM = re.compile(r"\bpython (train|eval)\.py (.*)|^transformer-jax (\w+) (.*)")


def text_of(page: str) -> str:
    return (ROOT / page).read_text(encoding="utf-8")


def blocks_of(text: str, *languages: str) -> list[str]:
    """The fenced blocks of these languages, in order."""
    fence = rf"^```(?:{'|'.join(languages)})\b[^\n]*\n(.*?)^```$"
    return re.findall(fence, text, re.DOTALL | re.MULTILINE)


def blocks(page: str, *languages: str) -> list[str]:
    return blocks_of(text_of(page), *languages)


def commands(page: str) -> list[list[str]]:
    """The arguments of every `transformer-jax` command in the page's shell and YAML blocks."""
    found = []
    for block in blocks(page, "sh", "yaml"):
        # A line that ends in a backslash continues, and so does one of YAML's `>-`.
        for line in re.sub(r"\\?\n\s+(?=--)", " ", block).splitlines():
            if match := PROGRAM.search(line.strip()):
                name, rest = match[1] or match[3], match[2] or match[4]
                rest = re.split(r"\s[<>#|&]|;", rest)[0]
                if rest.count('"') % 2:  # the end of a quoted command
                    rest = rest.removesuffix('"')
                found.append([name, *(w for w in shlex.split(rest) if not w.startswith("$"))])
    return found


def load_script(name: str, folder: str = "docs") -> ModuleType:
    """The module FOLDER/NAME.py, which is no part of a package."""
    spec = importlib.util.spec_from_file_location(name, ROOT / folder / f"{name}.py")
    assert spec and spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module
