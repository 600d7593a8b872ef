"""Nothing that is read from a run folder or a data file is executed."""

import ast
from pathlib import Path

import pytest

#: Its unpickler finds nothing but records of its own: tests/interop/test_weights.py.
RESTRICTED = "torch_files.py"

SOURCES = sorted((Path(__file__).parents[2] / "transformer_jax").rglob("*.py"))


@pytest.mark.parametrize("path", SOURCES, ids=lambda path: path.stem)
def test_nothing_that_is_read_is_executed(path):
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import | ast.ImportFrom):
            names = [alias.name for alias in node.names] + [getattr(node, "module", "") or ""]
            assert path.name == RESTRICTED or not {"pickle", "marshal", "shelve", "dill"} & {
                n.split(".")[0] for n in names
            }
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
            assert node.func.id not in ("eval", "exec", "compile", "__import__")
        if isinstance(node, ast.keyword) and node.arg == "allow_pickle":
            assert isinstance(node.value, ast.Constant) and node.value.value is False
