"""What MkDocs does beyond the Markdown of this folder: notebooks, source files and public names.

Links on the pages are relative to the repository, so that they also work where its files are
browsed. A page may link to a notebook or to any other file; here each becomes a page of the site.
"""

import json
import posixpath
import re
from pathlib import Path
from typing import Any

from mkdocs.structure.files import File, Files

import transformer_jax as tj

ROOT = Path(__file__).parents[1]
#: Fenced code, which is left alone, or the parts of a link: before the target, target, anchor.
FENCE_OR_LINK = re.compile(
    r"^(?:```+).*?^```+$|(\]\()((?![a-z]+:|#)[^)#\s]+)((?:#[^)]*)?\))", re.DOTALL | re.MULTILINE
)
LANGUAGES = {".py": "python", ".toml": "toml"}


def on_config(config: Any) -> None:
    """Adds the pages docs/adding_*.md to the last section of the navigation."""
    (pages,) = config.nav[-1].values() if config.nav else ([],)
    pages += sorted(path.name for path in Path(config.docs_dir).glob("adding_*.md"))


def on_files(files: Files, config: Any) -> Files:
    """Adds a page for each notebook, and for each file outside docs/ that a page links to."""
    for file in list(files):
        if file.src_uri.endswith(".ipynb"):
            files.remove(file)
            content = notebook_as_markdown(file.abs_src_path)
            files.append(File.generated(config, _page_of(f"docs/{file.src_uri}"), content=content))
    pages = list(files.documentation_pages())
    for page in pages:  # grows meanwhile: a README links to further files
        for path in _links(page):
            uri = _page_of(path)
            if (ROOT / path).is_file() and uri not in files.src_uris:
                files.append(File.generated(config, uri, content=_source_as_markdown(path)))
                pages.append(files.src_uris[uri])
    return files


def on_page_markdown(markdown: str, page: Any, config: Any, files: Files) -> str:
    """Points links to pages of the site, and public names to the module that defines them.

    `::: tj.*` stands for the public names that the page does not list.
    """
    del config, files
    uri = page.file.src_uri

    def to_page(match: re.Match[str]) -> str:
        if match[2] is None:
            return match[0]
        target = _page_of(_in_repository(uri, match[2]))
        return match[1] + posixpath.relpath(target, posixpath.dirname(uri) or ".") + match[3]

    markdown = FENCE_OR_LINK.sub(to_page, markdown)
    markdown = re.sub(r"^(```\w+ title=)(\S+)$", r'\1"\2"', markdown, flags=re.MULTILINE)
    others = set(tj.__all__) - set(re.findall(r"^::: tj\.(\w+)$", markdown, flags=re.MULTILINE))
    lines = "\n\n".join(f"::: tj.{name}" for name in sorted(others))
    markdown = markdown.replace("::: tj.*", lines)
    return re.sub(r"^::: tj\.(\w+)$", _defined_at, markdown, flags=re.MULTILINE)


def notebook_as_markdown(path: str | Path) -> str:
    """The cells of a notebook: text as it is, code and what it printed in fences, pictures."""
    parts = []
    for cell in json.loads(Path(path).read_text(encoding="utf-8"))["cells"]:
        text = "".join(cell["source"])
        parts.append(text if cell["cell_type"] == "markdown" else f"```python\n{text}\n```")
        parts += map(_output_as_markdown, cell.get("outputs", ()))
    return "\n\n".join(parts) + "\n"


def _output_as_markdown(output: dict[str, Any]) -> str:
    data = output.get("data", {})
    if "image/png" in data:
        return f"![figure](data:image/png;base64,{data['image/png'].strip()})"
    text = "".join(output.get("text") or data["text/plain"]).rstrip()
    return f"```text\n{text}\n```"


def _defined_at(match: re.Match[str]) -> str:
    return f"::: {getattr(tj, match[1]).__module__}.{match[1]}"


def _links(page: File) -> list[str]:
    """The files of the repository that a page links to."""
    links = (match[2] for match in FENCE_OR_LINK.finditer(page.content_string))
    return [_in_repository(page.src_uri, link) for link in links if link is not None]


def _in_repository(uri: str, link: str) -> str:
    """The path, from the repository's root, that a link on a page of the site leads to."""
    page = uri.removeprefix("source/") if uri.startswith("source/") else f"docs/{uri}"
    return posixpath.normpath(posixpath.join(posixpath.dirname(page), link))


def _page_of(path: str) -> str:
    """The page of the site that shows a file of the repository; a figure shows itself."""
    if path.startswith("docs/"):
        return re.sub(r"\.ipynb$", ".md", path.removeprefix("docs/"))
    return f"source/{path}" if path.endswith(".md") else f"source/{path}.md"


def _source_as_markdown(path: str) -> str:
    """A file outside docs/ as a page."""
    text = (ROOT / path).read_text(encoding="utf-8").rstrip()
    if path.endswith(".md"):
        return text
    language = LANGUAGES.get(Path(path).suffix, "text")
    return f"---\nsearch:\n  exclude: true\n---\n\n# {path}\n\n``````{language}\n{text}\n``````\n"
