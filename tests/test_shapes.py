"""Shape suffixes are checked: wrong shapes raise, and the check reaches the whole package."""

import ast
from importlib import import_module

import jax.numpy as jnp
import numpy as np
import pytest

from tests import shapes
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
