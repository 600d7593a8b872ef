"""The whole repository: floors, circles, light imports, public names, no trace of a machine."""

import ast
import graphlib
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

import transformer_jax as tj
from tests.imports import imported_modules, module_of
from transformer_jax.commands.main import COMMANDS

READS = "*"
ROOT = Path(__file__).parents[1]
PACKAGE = ROOT / "transformer_jax"

# The core trains, translates and scores. A floor of it imports only the floors below it and its own
# folder. Folders with the same number do not import each other.
CORE = {
    "errors": 0,
    "vocabulary": 0,
    "settings": 1,
    "ops": 2,
    "paths": 2,
    "trackers": 2,
    "layers": 3,
    "parallel": 3,
    "positions": 4,
    "mixers": 5,
    "models": 6,
    "weights": 7,
    "metrics": 8,
    "data": 9,
    "decoding": 9,
    "optimizers": 9,
    "config": 10,
    "recipes": 11,
    "translation": 11,
    "runs": 12,
    "training": 13,
}
#: They import the core, and not each other.
LIBRARIES = ("formats", "plan", "testing", "viewing")

HEAVY = ("tensorflow", "tensorflow_datasets", "matplotlib", "sentencepiece", "sacrebleu")


def part_of(parts: list[str]) -> tuple[int | None, str]:
    """The floor of a module, given as the parts of its name below the package, and its part.

    Parts of the same floor do not import each other. Each command is one, and so are all files of
    `commands/` that are none.
    """
    if parts and parts[0] in CORE:
        return CORE[parts[0]], parts[0]
    if parts and parts[0] in LIBRARIES:
        return 20, parts[0]
    if len(parts) > 1 and parts[0] == "commands":
        return (22, f"commands/{parts[1]}") if parts[1] in COMMANDS else (21, "commands")
    return None, ".".join(parts)


def floor_violations(package_dir: Path) -> list[str]:
    """One line for each import that goes up or sideways in the house."""
    found = []
    for path in sorted(package_dir.rglob("*.py")):
        parts = path.relative_to(package_dir).with_suffix("").parts
        if parts in {("__init__",), ("__main__",), ("commands", "__init__")}:
            continue  # the public API and `python -m` stand on the roof
        floor, here = part_of(list(parts))
        if floor is None:
            found.append(f"{path.name}: {here} has no floor; name it in CORE or LIBRARIES")
            continue
        package = ".".join((package_dir.name, *parts[:-1]))
        for line, name in imported_modules(path, package):
            names = name.split(".")
            if names[0] != package_dir.name:
                continue
            floor_there, there = part_of(names[1:])
            if there == here:
                continue
            where = f"{'/'.join(parts)}.py:{line}"
            if floor_there is None:
                found.append(f"{where} imports a package through {name}; import the file")
            elif floor_there >= floor:
                found.append(f"{where} ({here}) imports {name} ({there}), which is not below it")
    return found


def test_each_folder_of_the_commands_is_a_command() -> None:
    folders = {path.parent.name for path in PACKAGE.glob("commands/*/__init__.py")}
    assert folders and folders <= COMMANDS.keys()


def test_a_floor_imports_only_floors_below() -> None:
    assert floor_violations(PACKAGE) == []


@pytest.mark.parametrize(
    ("file", "line", "is_allowed"),
    [
        ("mixers/a.py", "from transformer_jax.ops.masks import causal", True),
        ("mixers/a.py", "from transformer_jax.models.config import ModelConfig", False),
        ("mixers/a.py", "from .. import models", False),
        ("mixers/a.py", "def f():\n    import transformer_jax.models", False),
        ("viewing/a.py", "from transformer_jax.formats.export import export", False),
        ("formats/a.py", "from transformer_jax.plan.planner import Plan", False),
        ("formats/a.py", "from transformer_jax.training.train import train", True),
        ("formats/a.py", "from transformer_jax.commands.flags import Parser", False),
        ("commands/flags.py", "from transformer_jax.commands.main import main", True),
        ("commands/flags.py", "from transformer_jax.commands.serve import app", False),
        ("commands/serve/a.py", "from transformer_jax.commands.flags import Parser", True),
        ("commands/serve/a.py", "from transformer_jax.commands.check.row import Row", False),
        ("commands/serve/a.py", "from transformer_jax.commands import train", False),
        ("commands/serve/a.py", "import transformer_jax.commands", False),
        ("errors.py", "from transformer_jax.ops import masks", False),
        ("helpers/a.py", "import json", False),
    ],
)
def test_the_floor_check_sees(tmp_path: Path, file: str, line: str, is_allowed: bool) -> None:
    path = tmp_path / "transformer_jax" / file
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(line + "\n", encoding="utf-8")
    assert (floor_violations(tmp_path / "transformer_jax") == []) is is_allowed


def modules_that_import_each_other(package_dir: Path) -> list[str]:
    """The modules of a circle of imports, lazy ones and those for types included; or none."""
    files = {}
    for path in package_dir.rglob("*.py"):
        files[module_of(path, package_dir.parent)] = path
    root = files.pop(package_dir.name, None)  # its lazy names import every floor
    assert root is not None
    graph = {}
    for module, path in files.items():
        package = ".".join(path.relative_to(package_dir.parent).parts[:-1])
        names = [name for _, name in imported_modules(path, package)]
        # The name in `from a.b import c` is a module, or it stands in one.
        found = {name if name in files else name.rpartition(".")[0] for name in names}
        graph[module] = (found & files.keys()) - {module}
    try:
        graphlib.TopologicalSorter(graph).prepare()
    except graphlib.CycleError as error:
        return error.args[1]
    return []


def test_no_modules_import_each_other() -> None:
    assert modules_that_import_each_other(PACKAGE) == []


@pytest.mark.parametrize(
    ("line", "is_circle"),
    [
        ("from transformer_jax.mixers.b import B", True),
        ("from transformer_jax.mixers import b", True),
        ("def f():\n    from transformer_jax.mixers.b import B", True),
        ("from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    from .b import B", True),
        ("from transformer_jax.mixers.c import C", False),
    ],
)
def test_the_circle_check_sees(tmp_path: Path, line: str, is_circle: bool) -> None:
    folder = tmp_path / "transformer_jax" / "mixers"
    folder.mkdir(parents=True)
    (folder.parent / "__init__.py").write_text("from transformer_jax.mixers.b import B\n")
    (folder / "a.py").write_text(line + "\n", encoding="utf-8")
    (folder / "b.py").write_text("from transformer_jax.mixers.middle import M\n")
    (folder / "middle.py").write_text("from transformer_jax.mixers.a import A\n")
    (folder / "c.py").write_text("import json\n")
    circle = modules_that_import_each_other(folder.parent)
    assert bool(circle) is is_circle, circle


def module_names() -> list[str]:
    """Every module of the package, in order."""
    paths = sorted(PACKAGE.rglob("*.py"))
    return [module_of(path, ROOT) for path in paths if path.stem != "__main__"]


REPORT = """
import importlib
import json
import sys

heavy, modules = map(json.loads, sys.argv[1:])
for name in modules:
    importlib.import_module(name)
    for each in sys.modules.keys() & heavy:
        heavy.remove(each)
        print(f"{name} imports {each}")

if "jax" in sys.modules:
    from jax._src import xla_bridge

    if xla_bridge.backends_are_initialized():
        print("a JAX backend was initialised")
"""


def what_importing_drags_in(modules: list[str], extra_path: Path | None = None) -> list[str]:
    """Imports the modules in a fresh process: one line for each promise that it breaks."""
    search_path = [str(path) for path in (extra_path, ROOT) if path is not None]
    result = subprocess.run(
        [sys.executable, "-c", REPORT, json.dumps(HEAVY), json.dumps(modules)],
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(search_path)},
    )
    assert result.returncode == 0, result.stderr
    return result.stdout.splitlines()


def test_every_module_imports_lightly() -> None:
    assert what_importing_drags_in(module_names()) == []


def test_the_light_import_check_sees(tmp_path: Path) -> None:
    (tmp_path / "heavy_one.py").write_text("import sentencepiece\n", encoding="utf-8")
    (tmp_path / "eager_one.py").write_text(
        "import jax.numpy as jnp\nONE = jnp.ones(())\n", encoding="utf-8"
    )
    found = what_importing_drags_in(["heavy_one", "eager_one"], tmp_path)
    assert found == ["heavy_one imports sentencepiece", "a JAX backend was initialised"]


def names_for_editors() -> dict[str, str]:
    """Public name -> its module, from the imports."""
    tree = ast.parse((PACKAGE / "__init__.py").read_text(encoding="utf-8"))
    imports = [node for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)]
    return {
        alias.name: node.module
        for node in imports
        for alias in node.names
        if node.module.startswith("transformer_jax.")
    }


def test_editors_see_the_names_that_exist():
    assert tj.__all__ == sorted(names_for_editors())
    assert set(tj.__all__) <= set(dir(tj))


def test_every_name_is_that_of_its_module():
    module = {name: getattr(tj, name).__module__ for name in tj.__all__}
    floors = {name: full.rpartition(".")[0] for name, full in names_for_editors().items()}
    assert [name for name in module if not module[name].startswith(floors[name])] == []


def test_another_name_is_an_attribute_error():
    with pytest.raises(AttributeError, match="has no attribute 'Confgi'"):
        _ = tj.Confgi


# Written in two halves, so that this file does not name them itself.
TRACES = ["py" + "pi.org", "files.python" + "hosted", "/wo" + "rk/", "/ro" + "ot/"]


def traces_of_a_machine(root: Path, names: list[str]) -> list[str]:
    """`file:line: trace` for every registry host or path of a workplace in the files named."""
    found = []
    for name in names:
        content = (root / name).read_bytes().decode("utf-8", errors="replace")
        for number, line in enumerate(content.splitlines(), start=1):
            found += [f"{name}:{number}: {trace}" for trace in TRACES if trace in line]
    return found


@pytest.fixture(scope="module")
def committed() -> list[str]:
    if not (ROOT / ".git").exists():
        pytest.skip("not a git checkout, so there is no list of committed files")
    listing = subprocess.run(
        ["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, text=True, check=True
    )
    names = [name for name in listing.stdout.split("\0") if name and (ROOT / name).is_file()]
    assert names
    return names


def test_no_committed_file_names_a_registry_or_a_workplace(committed: list[str]) -> None:
    assert traces_of_a_machine(ROOT, committed) == []


def test_no_committed_file_is_a_download(committed: list[str]) -> None:
    assert [name for name in committed if (ROOT / name).stat().st_size > 1_000_000] == []


def test_the_trace_check_sees(tmp_path: Path) -> None:
    (tmp_path / "a.md").write_text("fine\nhttps://" + TRACES[0] + "/simple\n", encoding="utf-8")
    assert traces_of_a_machine(tmp_path, ["a.md"]) == ["a.md:2: " + TRACES[0]]
