"""Every registered position scheme must pass the suite, and broken ones must not."""

from typing import ClassVar

import jax
import jax.numpy as jnp
import pytest

from transformer_jax.positions.alibi import Alibi, LinearBias
from transformer_jax.positions.base import Position, PositionConfig
from transformer_jax.positions.registry import POSITIONS
from transformer_jax.positions.rope import Rope, RotaryPosition, rotated
from transformer_jax.positions.sinusoidal import Sinusoidal
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


class SaysItIsRelative(Sinusoidal):
    shift_invariant: ClassVar[bool] = True


class ForgetsToSayItIsRelative(Rope):
    shift_invariant: ClassVar[bool] = False


class TurnsOnlyQueries(RotaryPosition):
    def rotate(self, q, k, q_positions, k_positions):
        return rotated(q, q_positions, 10000.0), k


class CountsFromTheFirstKey(LinearBias):
    """Uses indices as positions: correct in parallel, wrong in a step with one query."""

    def bias(self, q_positions, k_positions):
        return super().bias(jnp.arange(len(q_positions)), jnp.arange(len(k_positions)))


class Widens(Position):
    def embed(self, x, positions):
        return jnp.concatenate([x, x], axis=-1)


class InLowPrecision(LinearBias):
    def bias(self, q_positions, k_positions):
        return super().bias(q_positions, k_positions).astype(jnp.bfloat16)


def builds(module: type[Position], config: type[PositionConfig]) -> PositionConfig:
    """The options of one scheme, which build the module of another."""
    return type(module.__name__, (config,), {"build": lambda self, c: module(self, c)})()


@pytest.mark.parametrize(
    ("config", "check"),
    [
        (SaysItIsRelative(), position_suite.check_shift_invariance),
        (ForgetsToSayItIsRelative(), position_suite.check_shift_invariance),
        (builds(TurnsOnlyQueries, Rope), position_suite.check_shift_invariance),
        (builds(CountsFromTheFirstKey, Alibi), position_suite.check_mixer_steps),
        (builds(Widens, PositionConfig), position_suite.check_widths),
        (builds(InLowPrecision, Alibi), position_suite.check_widths),
    ],
)
def test_the_suite_rejects(config, check):
    with pytest.raises(AssertionError):
        check(config)
