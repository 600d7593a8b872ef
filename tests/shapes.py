"""Checks the shape suffixes of the package while the tests run.

`q_BTHK` is an array with four axes. In one call of a function every letter has one size, for
arguments and local variables alike, and a digit is a size: `x_B1D` has 1 as its second.
`install` puts the check into the modules of `PACKAGES` when they are imported: after the
arguments are bound, and after every assignment to a name with a suffix. A mismatch raises
`ShapeError`, a `TypeError`. Values that are not arrays (None, tuples) are not checked.

The names are the annotations, so nothing is written twice, and users pay nothing.
"""

import ast
import importlib.abc
import importlib.machinery
import re
import sys
from types import CodeType, ModuleType
from typing import Any

PACKAGES = tuple(
    f"transformer_jax.{name}"
    for name in ("ops", "layers", "positions", "mixers", "models", "decoding")
)

#: a lower-case name, then the axes: capitals, digits that are sizes, and k (of a top k)
SUFFIX = re.compile(r"^_*[a-z][a-z0-9_]*_([A-Z0-9k]*[A-Z][A-Z0-9k]*)$")


class ShapeError(TypeError):
    """An array has other axes than its name says."""


def check(sizes: dict[str, tuple[int, str]], name: str, value: Any, place: str) -> None:
    """Compares the shape of `value` with the suffix of `name` and with the `sizes` so far."""
    axes = SUFFIX.match(name)[1]
    if isinstance(value, type) or not hasattr(value, "ndim"):
        return
    if value.ndim != len(axes):
        raise ShapeError(f"{place}: {name} has the shape {value.shape}")
    for axis, size in zip(axes, value.shape, strict=True):
        if axis.isdigit():
            if size != int(axis):
                raise ShapeError(f"{place}: {name} has the shape {value.shape}")
            continue
        known, where = sizes.setdefault(axis, (size, name))
        if size != known:
            raise ShapeError(
                f"{place}: {name} has the shape {value.shape}, but {axis} is {known} in {where}"
            )


class _Insert(ast.NodeTransformer):
    """Adds the calls of `check` to every function of a module."""

    def __init__(self, path: str) -> None:
        self.path = path

    def visit_FunctionDef(self, node: ast.FunctionDef) -> ast.FunctionDef:
        arguments = [*node.args.posonlyargs, *node.args.args, *node.args.kwonlyargs]
        node.body = self._body(node.body)
        start = [*ast.parse("_sizes_ = {}").body]
        start += self._checks([argument.arg for argument in arguments], node.lineno)
        has_docstring = ast.get_docstring(node, clean=False) is not None
        node.body[has_docstring:has_docstring] = start
        return node

    def _body(self, statements: list[ast.stmt]) -> list[ast.stmt]:
        body: list[ast.stmt] = []
        for statement in statements:
            if isinstance(statement, ast.FunctionDef | ast.ClassDef):
                body.append(self.visit(statement))
                continue
            for field in ("body", "orelse", "finalbody"):
                if getattr(statement, field, None):
                    setattr(statement, field, self._body(getattr(statement, field)))
            if isinstance(statement, ast.For):
                statement.body[:0] = self._checks(_names([statement.target]), statement.lineno)
            body.append(statement)
            if isinstance(statement, ast.Assign):
                body += self._checks(_names(statement.targets), statement.lineno)
            elif isinstance(statement, ast.AnnAssign | ast.AugAssign):
                body += self._checks(_names([statement.target]), statement.lineno)
        return body

    def _checks(self, names: list[str], line: int) -> list[ast.stmt]:
        place = f"{self.path}:{line}"
        return [
            statement
            for name in names
            if SUFFIX.match(name)
            for statement in ast.parse(f"_check_(_sizes_, {name!r}, {name}, {place!r})").body
        ]


def _names(targets: list[ast.expr]) -> list[str]:
    """The local variables that an assignment sets."""
    return [
        node.id
        for target in targets
        for node in ast.walk(target)
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)
    ]


class _Loader(importlib.machinery.SourceFileLoader):
    def get_code(self, fullname: str) -> CodeType:  # never from a .pyc file, which has no checks
        path = self.get_filename(fullname)
        tree = _Insert(path).visit(ast.parse(self.get_data(path), path))
        return compile(ast.fix_missing_locations(tree), path, "exec", dont_inherit=True)

    def exec_module(self, module: ModuleType) -> None:
        module.__dict__["_check_"] = check
        super().exec_module(module)


class _Finder(importlib.abc.MetaPathFinder):
    def find_spec(self, fullname: str, path: Any = None, target: Any = None) -> Any:
        if not fullname.startswith(PACKAGES):
            return None
        spec = importlib.machinery.PathFinder.find_spec(fullname, path)
        if spec is not None and isinstance(spec.loader, importlib.machinery.SourceFileLoader):
            spec.loader = _Loader(spec.loader.name, spec.loader.path)
        return spec


def install() -> None:
    """Before the package is imported."""
    if not any(isinstance(finder, _Finder) for finder in sys.meta_path):
        sys.meta_path.insert(0, _Finder())
