"""Who imports whom: the graph that the rule of levels and `./run test --changed` both read."""

import ast
from collections.abc import Iterator
from pathlib import Path


def imported_modules(path: Path, package: str) -> Iterator[tuple[int, str]]:
    """Line and absolute name of every import in a file, lazy ones and those for types included."""
    yield from imports_of(ast.parse(path.read_text(encoding="utf-8")), package)


def imports_of(tree: ast.AST, package: str) -> Iterator[tuple[int, str]]:
    """As `imported_modules`, of a tree of a module in `package`."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield node.lineno, alias.name
        elif isinstance(node, ast.ImportFrom):
            above = package.split(".")[: len(package.split(".")) - node.level + 1]
            base = node.module or ""
            if node.level:
                base = ".".join(above + ([base] if base else []))
            # `from transformer_jax import errors` names a module only with the imported name.
            for alias in node.names:
                yield node.lineno, f"{base}.{alias.name}"


def module_of(path: Path, root: Path) -> str:
    """The name by which a file below `root` is imported."""
    parts = path.relative_to(root).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)
