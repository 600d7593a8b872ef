"""What the suite itself relies on: checks of shapes, the budget of programs."""

import ast
from importlib import import_module
from types import SimpleNamespace

import jax.numpy as jnp
import numpy as np
import pytest

from tests import programs, shapes
from transformer_jax.ops.attention import attention_scores
from transformer_jax.ops.sequences import reverse_prefix


def test_two_arguments_that_disagree():
    with pytest.raises(shapes.ShapeError, match="but B is 3 in q_BTHK"):
        attention_scores(jnp.ones((3, 5, 1, 4)), jnp.ones((2, 5, 1, 4)))
    with pytest.raises(shapes.ShapeError, match=r"mask_BL has the shape \(2, 4\), but L is 5"):
        reverse_prefix(jnp.ones((2, 5, 3)), jnp.ones((2, 4), bool))


FUNCTION = '''
def f(x_BD, y_1D=None, *, z_D):
    """Says what it does."""
    {}
    return z_D
'''


@pytest.mark.parametrize(
    ("body", "words"),
    [
        ("x_BD = x_BD.T", "x_BD has the shape"),
        ("x_D2, a_B = z_D[:, None], z_D", "x_D2 has the shape"),
        ("x_BD: object = x_BD[:1]", "B is 2 in x_BD"),
        ("z_D /= 2\n    x_BD += z_D\n    y_1D = z_D", "y_1D has the shape"),
        ("for x_D in x_BD: pass\n    for x_B in x_BD: pass", "B is 2 in x_BD"),
        ("if True:\n        with open('/dev/null'): a_B = z_D", "B is 2 in x_BD"),
        ("g = lambda: None\n    def g(a_D): pass\n    g(x_BD)", "a_D has the shape"),
        ("y_1D = x_BD", "y_1D has the shape"),
    ],
)
def test_local_variables(body, words):
    def run(body, **arguments):
        tree = shapes._Insert("file.py").visit(ast.parse(FUNCTION.format(body)))
        names = {"_check_": shapes.check}
        exec(compile(ast.fix_missing_locations(tree), "file.py", "exec"), names)
        return names["f"](np.ones((2, 3)), **arguments)

    run("B_CONSTANT = NO_SUFFIX = x_BD.T", z_D=np.ones(3))
    with pytest.raises(shapes.ShapeError, match=words):
        run(body, z_D=np.zeros(3))


def test_every_module_is_checked():
    for name in ("decoding.beam", "mixers.mamba", "models.transformer"):
        assert import_module(f"transformer_jax.{name}")._check_ is shapes.check


def finished(*counts: tuple[str, str, int]) -> programs.Programs:
    """After reports of (file, worker, programs)."""
    plugin = programs.Programs()
    for file, worker, count in counts:
        report = SimpleNamespace(nodeid=f"{file}::test_a", worker_id=worker, programs=count)
        plugin.pytest_runtest_logreport(report)
    return plugin


def status_of(plugin: programs.Programs) -> int:
    session = SimpleNamespace(config=SimpleNamespace(), exitstatus=pytest.ExitCode.OK)
    plugin.pytest_sessionfinish(session)
    return session.exitstatus


def test_a_file_above_its_limit_fails_the_run(monkeypatch) -> None:
    monkeypatch.setattr(programs, "EXCEPTIONS", {"large.py": (500, "a reason")})
    counts = ("a.py", "gw0", 300), ("a.py", "gw1", 350), ("large.py", "gw0", 450)
    within = finished(*counts)
    assert within.over() == [] and status_of(within) == 0
    above = finished(*counts, ("a.py", "gw1", 51), ("large.py", "gw0", 51))
    assert [line.split(" programs")[0] for line in above.over()] == ["a.py: 401", "large.py: 501"]
    assert status_of(above) == 1


def test_every_exception_is_a_file_with_a_reason() -> None:
    for name, (limit, reason) in programs.EXCEPTIONS.items():
        assert limit > programs.LIMIT and reason and (programs.ROOT / name).is_file(), name
