"""What the pages show works: commands parse, files and names exist, the site builds."""

import functools
import json
import os
import re
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Callable, Iterable
from dataclasses import replace
from itertools import product
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest

import transformer_jax as tj
from tests.examples import EXAMPLES, shown_sentences
from tests.oracles import apart, need
from tests.pages import PAGES, ROOT, blocks, commands, load_script, text_of
from transformer_jax import paths
from transformer_jax.commands.compare.rows import split_grid, split_vary
from transformer_jax.commands.main import parse
from transformer_jax.config import override
from transformer_jax.models.config import check_model_config
from transformer_jax.recipes import load_recipe

COMMANDS = [(page, command) for page in PAGES for command in commands(page)]
NOTEBOOK = ROOT / "docs" / "notebooks" / "first_steps.ipynb"
SIZES = "STEPS, LAYERS, D_MODEL, SHAPES = 450, 2, 128, 3"


def check_command(arguments: list[str]) -> None:
    """It parses, its recipe exists and takes its flags, and a training has a folder and a model."""
    args = parse(arguments)
    if args.command in ("train", "compare"):
        name = args.config
        config = override(load_recipe(ROOT / name if name.endswith(".py") else name), args.flags)
        rows = [each for text in getattr(args, "vary", ()) for each in split_vary(text)]
        for changes, point in product(rows or [{}], split_grid(getattr(args, "grid", ()))):
            model = override(config, changes | point).model
            known = {"dtype": "float32", "matmul_dtype": "float32", "dropout_rate": 0.1}
            check_model_config(replace(model, **known))  # what a start settles
    if args.command == "train":
        plans = "--plan" in arguments
        assert plans or args.workdir, "no --workdir"
        assert plans or not args.plan_topology, "--plan_topology without --plan"


def test_commands_parse(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(paths, "_check_bucket", lambda url: None)  # its packages may be missing
    failed = []
    for page, arguments in COMMANDS:
        try:
            check_command(arguments)
        except (Exception, SystemExit) as error:
            failed.append(f"{page}: {' '.join(arguments)}: {error}")
    assert failed == []


def test_every_example_sentence_is_one_whose_translation_is_tested() -> None:
    """`tests/slow/test_quickstart.py` compares the translations with the model's."""
    shown = shown_sentences()
    assert shown.keys() == EXAMPLES.keys() | (EXAMPLES.values() & shown.keys())
    assert len(EXAMPLES.values() & shown.keys()) > 2


def test_the_readme_is_short_and_begins_with_two_commands() -> None:
    assert len(text_of("README.md").splitlines()) <= 130
    first = [line.split()[:2] for line in blocks("README.md", "sh")[0].splitlines()]
    assert first == [["./run", "quickstart"], ["./run", "test"]]


def test_the_example_of_the_readme_runs() -> None:
    (example,) = blocks("README.md", "python")
    names: dict[str, Any] = {}
    exec(compile(example, "README.md", "exec"), names)
    assert names["loss"] < 2.8  # log(16): it has learned something
    shapes = jax.tree.map(np.shape, names["gradient"])
    assert shapes == jax.tree.map(np.shape, tj.init(names["config"], jax.random.key(0)))


def test_the_readme_names_every_recipe() -> None:
    named = re.findall(r"\[`(\w+)`\]\(configs/(\w+)\.py\)", text_of("README.md"))
    assert sorted(name for name, _ in named) == sorted(p.stem for p in ROOT.glob("configs/*.py"))
    assert all(name == file for name, file in named)


def test_the_front_page_links_every_page() -> None:
    """But generated ones that the navigation alone has, and the log."""
    linked = set(re.findall(r"\]\(([\w/]+)\.(?:md|ipynb)\)", text_of("docs/index.md")))
    pages = {page.removeprefix("docs/").removesuffix(".md") for page in PAGES[1:]} - {"index"}
    assert pages - linked == set()


def test_results_are_short_and_have_the_numbers_of_the_readme() -> None:
    results = text_of("docs/results.md")
    assert len(results.splitlines()) <= 150
    numbers = set(re.findall(r"\b\d+\.\d\d\b", text_of("README.md"))) - {"3.11", "3.13"}
    assert len(numbers) > 5
    assert {number for number in numbers if number not in results} == set()


def of_pages(faults: Callable[[str], Iterable[str]]) -> dict[str, list[str]]:
    """The pages with faults, and their faults."""
    return {page: found for page in PAGES if (found := sorted(faults(page)))}


def test_named_files_exist() -> None:
    def missing(page: str) -> list[str]:
        text = re.sub(r"^```.*?^```$", "", text_of(page), flags=re.DOTALL | re.MULTILINE)
        if page.startswith("docs/adding_"):  # it names files that the reader will write
            text = re.sub(r"`tests/[^`]+`", "", text)
        named = re.findall(r"\b(?:benchmarks|configs|tests)/\w[\w/]*\.(?:py|md)\b", text)
        links = re.findall(r"\]\(((?![a-z]+:|#)[^)#\s]+)", text)
        found = [name for name in named if not (ROOT / name).exists()]
        return found + [link for link in links if not ((ROOT / page).parent / link).exists()]

    assert of_pages(missing) == {}


def test_extras_exist() -> None:
    """Each extra named after `./run setup` can be installed."""

    def unknown(page: str) -> set[str]:
        named = re.findall(r"\./run setup((?: [a-z0-9]+)+)", text_of(page))
        return {extra for words in named for extra in words.split()} - extras()

    assert of_pages(unknown) == {}


def test_the_scripts_help_names_every_extra() -> None:
    usage = re.search(r"extras: ([a-z0-9\s]+?)\nEach", text_of("run"))
    assert usage and set(usage[1].split()) == extras()


def extras() -> set[str]:
    project = tomllib.loads(text_of("pyproject.toml"))["project"]
    return set(project["optional-dependencies"])


def test_public_names_exist() -> None:
    def unknown(page: str) -> set[str]:
        return set(re.findall(r"\btj\.(\w+)", text_of(page))) - set(tj.__all__)

    assert of_pages(unknown) == {}


@pytest.fixture(scope="module")
def code_cells() -> list[dict[str, Any]]:
    cells = json.loads(NOTEBOOK.read_text(encoding="utf-8"))["cells"]
    return [cell for cell in cells if cell["cell_type"] == "code"]


def test_the_notebook_runs(code_cells: Any, tmp_path: Path, monkeypatch: Any) -> None:
    """Every cell, with few steps and sentences: its outputs have the kinds of the stored ones."""
    apart("it trains")
    from transformer_jax.data.sources.grammar import sentences

    sources = ["".join(cell["source"]) for cell in code_cells]
    assert sum(SIZES in source for source in sources) == 1
    small = "STEPS, LAYERS, D_MODEL, SHAPES = 4, 1, 16, 1"
    monkeypatch.setattr(sentences, "SPLIT_SIZES", {"train": 3000, "validation": 20, "test": 20})
    # Its cache is of this test alone.
    monkeypatch.setattr(sentences, "_corpus", functools.cache(sentences._corpus.__wrapped__))
    monkeypatch.chdir(tmp_path)
    names: dict[str, Any] = {}
    all_outputs = list(
        load_script("run_notebook").run_cells([s.replace(SIZES, small) for s in sources], names)
    )
    assert len(names["translations"]) == len(names["sentences"])
    assert (tmp_path / "attention.png").stat().st_size > 10_000
    kinds, stored = (
        [[output["output_type"] for output in outputs] for outputs in each]
        for each in (all_outputs, [cell["outputs"] for cell in code_cells])
    )
    assert kinds == stored


def test_the_notebook_shows_what_it_found(code_cells: Any) -> None:
    """Otherwise: python docs/run_notebook.py."""
    counts = [cell["execution_count"] for cell in code_cells]
    assert counts == list(range(1, len(code_cells) + 1))
    outputs = [output for cell in code_cells for output in cell["outputs"]]
    printed = "".join(line for output in outputs for line in output.get("text", ()))
    shown = re.findall(r"^(\S.*)\n    (\S.*)$", printed, re.MULTILINE)
    assert shown[-2:] == [(each, EXAMPLES[each]) for each, _ in shown[-2:]]
    need("mkdocs")
    page = load_script("site_hooks").notebook_as_markdown(NOTEBOOK)
    assert page.count("](data:image/png") == sum("image/png" in o.get("data", ()) for o in outputs)
    assert all(f"\n{line.rstrip()}\n" in page for line in printed.splitlines())


def test_the_notebook_uses_public_names(code_cells: Any) -> None:
    text = "".join(line for cell in code_cells for line in cell["source"])
    assert set(re.findall(r"\btj\.(\w+)", text)) <= set(tj.__all__)
    assert re.findall(r"transformer_jax.*", text) == ["transformer_jax", "transformer_jax as tj"]


def build_site(root: Path, site: Path) -> subprocess.CompletedProcess[str]:
    environment = {"NO_MKDOCS_2_WARNING": "1", "JAX_PLATFORMS": "cpu", "PYTHONPATH": str(ROOT)}
    return subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(site)],
        cwd=root,
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        check=False,
    )


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Built in strict mode: every link, anchor and public name is found."""
    need("mkdocs")
    site = tmp_path_factory.mktemp("site")
    done = build_site(ROOT, site)
    assert done.returncode == 0, done.stderr
    return site


def test_the_site_is_whole(site: Path) -> None:
    api = (site / "api.html").read_text(encoding="utf-8")
    assert [name for name in tj.__all__ if f'.{name}"' not in api] == []
    assert "Annotated" not in api, "signatures have no validators"
    for page in site.rglob("*.html"):
        loaded = r"<(?:script|link|img)[^>]+(?:src|href)=.https?:"
        assert not re.search(loaded, page.read_text(encoding="utf-8")), "works without a network"


def test_the_site_is_searched_from_the_disk(site: Path, browser: Any) -> None:
    wait = need("selenium.webdriver.support.ui").WebDriverWait(browser, 60)
    results = ("css selector", ".md-search-result__link")
    for page in ("index.html", "notebooks/first_steps.html"):
        browser.get((site / page).as_uri())
        query = browser.find_element("name", "query")
        browser.execute_script("arguments[0].focus()", query)
        query.send_keys("OmegaT")  # a word of one page
        hits = wait.until(lambda browser: browser.find_elements(*results))
        found = {hit.get_attribute("href").partition("#")[0] for hit in hits}
        assert found == {(site / "serving.html").as_uri()}


@pytest.mark.parametrize(
    ("text", "status"),
    [
        ("[link](other.md#there)", 0),
        ("[link](nowhere.md)", 1),
        ("[link](../nowhere.py)", 1),
        ("[link](other.md#nowhere)", 1),
        ("::: tj.nothing", 1),
    ],
)
def test_a_broken_page_is_refused(text: str, status: int, tmp_path: Path) -> None:
    need("mkdocs")
    docs = tmp_path / "docs"
    docs.mkdir()
    for name in ("site_hooks.py", "plain_annotations.py", "site.css"):
        shutil.copy(ROOT / "docs" / name, docs)
    settings = text_of("mkdocs.yml").partition("\nnav:")[0]
    (tmp_path / "mkdocs.yml").write_text(settings, encoding="utf-8")
    (docs / "index.md").write_text(f"# Page\n\n{text}\n", encoding="utf-8")
    (docs / "other.md").write_text("# Other\n\n## There\n", encoding="utf-8")
    done = build_site(tmp_path, tmp_path / "site")
    assert done.returncode == status, done.stderr
