"""docs/adding_a_position.md, followed in a copy of the repository."""

import jax.numpy as jnp
import pytest

from tests.followed_page import copied, options_of

PAGE = "adding_a_position.md"


def test_the_suite_runs_over_the_scheme_of_the_page(tree):
    contract = copied(tree, "tests.contract.test_positions")
    suite = copied(tree, "transformer_jax.testing.positions")
    contract.test_scheme("kerple", suite.check_shift_invariance)
    contract.test_scheme("kerple", suite.check_widths)
    assert "kerple" in contract.AT_SCORES and "kerple" not in contract.EMBEDDING
    contract.test_in_a_mixer("kerple")
    assert contract.has_parameters(contract.POSITIONS["kerple"])
    contract.test_parameters("kerple")
    assert suite.order_matters(contract.POSITIONS["kerple"]())


@pytest.mark.parametrize("test", ["is_the_formula", "the_initial_rates_are_the_option"])
def test_the_tests_of_the_page(tree, test):
    getattr(copied(tree, "tests.positions.test_kerple"), f"test_{test}")()


@pytest.mark.parametrize("test", ["is_the_formula", "the_initial_rates_are_the_option"])
def test_the_tests_of_the_page_can_fail(tree, monkeypatch, test):
    module = copied(tree, "transformer_jax.positions.kerple").LogarithmicBias
    monkeypatch.setattr(
        module, "bias", lambda self, q, k: -jnp.log1p(jnp.abs(q[:, None] - k)) * jnp.ones((4, 1, 1))
    )
    with pytest.raises(AssertionError):
        getattr(copied(tree, "tests.positions.test_kerple"), f"test_{test}")()


def test_the_pages_of_mixers_and_options_know_it(tree):
    copied(tree, "tests.test_mixers_doc").test_hooks()
    written = options_of(PAGE, tree)
    assert "### kerple" in written and "| `initial` | `1.0` |" in written


def test_what_is_refused(tree):
    from transformer_jax.config import Config, override
    from transformer_jax.errors import UserError
    from transformer_jax.models.config import check_model_config

    with pytest.raises(UserError, match=r"kerple\(initial=0\).*greater than 0"):
        override(Config(), {"model.encoder.position": "kerple(initial=0)"})
    flags = {"model.encoder.position": "kerple", "model.encoder.mixers": "linear"}
    with pytest.raises(UserError, match="position=kerple adds a number .*mixers=linear does not"):
        check_model_config(override(Config(), flags).model)
