"""`transformer_jax` has the same names for editors, which read its imports, and at run time."""

import ast
from pathlib import Path

import pytest

import transformer_jax as tj


def names_for_editors() -> dict[str, str]:
    """Public name -> its module, from the imports."""
    tree = ast.parse(Path(tj.__file__).read_text(encoding="utf-8"))
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
