"""Nothing that is read from a run folder or a data file is executed."""

import ast
from pathlib import Path

#: Its unpickler finds nothing but records of its own: tests/formats/test_weights.py.
RESTRICTED = "torch_files.py"

EXECUTE = ("eval", "exec", "compile", "__import__")

PACKAGE = Path(__file__).parents[2] / "transformer_jax"


def executed(source: str, name: str = "a.py") -> list[int]:
    """The lines of a module that can execute what they read."""
    found = []
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import | ast.ImportFrom) and name != RESTRICTED:
            module = getattr(node, "module", "") or ""
            # The class of an error reads nothing.
            names = [n for a in node.names if not (n := f"{module}.{a.name}").endswith("Error")]
            if {"pickle", "marshal", "shelve", "dill"} & {
                n.strip(".").split(".")[0] for n in names
            }:
                found.append(node.lineno)
        if isinstance(node, ast.Call) and getattr(node.func, "id", "") in EXECUTE:
            found.append(node.lineno)
        if isinstance(node, ast.keyword) and node.arg == "allow_pickle":
            is_off = isinstance(node.value, ast.Constant) and node.value.value is False
            found += [] if is_off else [node.value.lineno]
    return found


def test_nothing_that_is_read_is_executed():
    sources = sorted(PACKAGE.rglob("*.py"))
    offenders = {
        str(path.relative_to(PACKAGE)): lines
        for path in sources
        if (lines := executed(path.read_text(encoding="utf-8"), path.name))
    }
    assert offenders == {} and len(sources) > 200


def test_the_check_sees():
    lines = (
        "import pickle",
        "from dill import load",
        "from pickle import PicklingError",
        "eval(text)",
        "np.load(file, allow_pickle=True)",
        "np.load(file, allow_pickle=False)",
        "self.eval(text)",
    )
    assert executed("\n".join(lines)) == [1, 2, 4, 5]
