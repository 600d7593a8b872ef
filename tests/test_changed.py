"""`./run test --changed` selects the tests that can see a change, and says why."""

import pytest

from tests.changed import Graph, selected

FILES = {
    "pyproject.toml": "",
    "README.md": "",
    "docs/page.md": "",
    "docs/draw.py": "from transformer_jax.ops.masks import causal\n",
    "configs/small.py": "",
    "transformer_jax/__init__.py": "def f():\n    from transformer_jax.models.api import apply\n",
    "transformer_jax/ops/masks.py": "",
    "transformer_jax/ops/scans.py": "",
    "transformer_jax/models/api.py": "def f():\n    from transformer_jax.ops import masks\n",
    "transformer_jax/commands/serve/app.py": 'PAGE = "static/page.html"\n',
    "transformer_jax/commands/serve/static/page.html": "",
    "transformer_jax/commands/main.py": "",
    "transformer_jax/commands/train.py": "import transformer_jax.models.api\n",
    "transformer_jax/commands/serve/__init__.py": "from . import app\n",
    "tests/conftest.py": (
        "import pytest\n@pytest.fixture\ndef page():\n"
        "    from transformer_jax.commands.serve import app\n"
    ),
    "tests/helper.py": "from transformer_jax.ops.scans import scan\n",
    "tests/ops/test_masks.py": "from transformer_jax.ops.masks import causal\n",
    "tests/ops/test_scans.py": "def test_a():\n    from tests.helper import run\n",
    "tests/test_api.py": "import transformer_jax as tj\ntj.apply\n",
    "tests/test_names.py": "import transformer_jax as tj\ntj.__all__\n",
    "tests/test_page.py": "def test_a(page):\n    pass\n",
    "tests/test_docs.py": 'FOLDER = ROOT / "docs"\n',
    "tests/test_train.py": (
        'from transformer_jax.commands.main import main\nmain(["train"])\nREADS = "configs/*.py"\n'
    ),
    "tests/test_serve.py": 'STARTS = "serve"\nrun(COMMAND)\n',
    "tests/test_all.py": 'run("transformer-jax", *words)\n',
    "tests/test_traces.py": 'READS = "*"\n',
}
ALL = sorted(name for name in FILES if "/test_" in name)


@pytest.fixture(scope="module")
def graph(tmp_path_factory) -> Graph:
    root = tmp_path_factory.mktemp("checkout")
    for name, text in FILES.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text, encoding="utf-8")
    return Graph(root, FILES)


@pytest.mark.parametrize(
    ("changed", "tests"),
    [
        ("transformer_jax/ops/masks.py", "all api names train masks"),  # lazily and by `tj.apply`
        ("transformer_jax/ops/scans.py", "scans"),  # by a helper
        ("transformer_jax/commands/train.py", "all train"),
        ("transformer_jax/commands/serve/app.py", "all page serve"),  # by a fixture, by STARTS
        ("transformer_jax/commands/serve/__init__.py", "all page serve"),
        ("transformer_jax/commands/serve/static/page.html", "all page serve"),
        ("tests/helper.py", "scans"),
        ("tests/test_api.py", "api"),
        ("docs/page.md", "docs"),
        ("configs/small.py", "train"),
        (".ci/run", ""),
        ("README.md", "everything"),  # nobody reads it
        ("transformer_jax/new/file.py", "everything"),
        ("pyproject.toml", "everything"),
        ("tests/conftest.py", "everything"),
    ],
)
def test_those_that_can_see_it_are_selected(graph: Graph, changed: str, tests: str) -> None:
    names = {name.rpartition("test_")[2].removesuffix(".py") for name in selected(graph, [changed])}
    names.remove("traces")
    everything = {name.rpartition("test_")[2].removesuffix(".py") for name in ALL} - {"traces"}
    assert names == (everything if tests == "everything" else set(tests.split()))


def test_each_has_its_way_to_the_change(graph: Graph) -> None:
    ways = selected(graph, ["docs/page.md", "transformer_jax/ops/scans.py"])
    assert ways.pop("tests/test_traces.py")
    assert selected(graph, []) == {}
    assert ways == {
        "tests/ops/test_scans.py": [
            "tests/ops/test_scans.py",
            "tests/helper.py",
            "transformer_jax/ops/scans.py",
        ],
        "tests/test_docs.py": ["tests/test_docs.py", "docs/page.md"],
    }
