"""Every registered position scheme must pass the suite."""

import jax
import pytest

from transformer_jax.positions.registry import POSITIONS
from transformer_jax.testing import mixers as suite, positions as position_suite

HOOKS = {name: cls().build(suite.context(causal=False)).hooks() for name, cls in POSITIONS.items()}
EMBEDDING = [name for name, hooks in HOOKS.items() if "embed" in hooks]
AT_SCORES = [name for name, hooks in HOOKS.items() if hooks - {"embed"}]


@pytest.mark.parametrize("name", POSITIONS)
@pytest.mark.parametrize(
    "check", [position_suite.check_shift_invariance, position_suite.check_widths]
)
def test_scheme(name, check):
    check(POSITIONS[name]())


@pytest.mark.parametrize("name", AT_SCORES)
def test_in_a_mixer(name):
    position_suite.check_mixer_steps(POSITIONS[name]())


@pytest.mark.parametrize("name", EMBEDDING)
def test_in_a_model(name):
    position_suite.check_model_steps(POSITIONS[name]())


def has_parameters(cls):
    built = jax.eval_shape(lambda: position_suite.build(cls(), causal=False)[1])
    return bool(jax.tree.leaves(built))


@pytest.mark.parametrize("name", [name for name, cls in POSITIONS.items() if has_parameters(cls)])
def test_parameters(name):
    position_suite.check_parameters(POSITIONS[name]())


@pytest.mark.parametrize("name", POSITIONS)
def test_without_positions_an_encoder_sees_a_bag_of_words_and_with_any_it_does_not(name):
    assert position_suite.order_matters(POSITIONS[name]()) == (name != "none")
