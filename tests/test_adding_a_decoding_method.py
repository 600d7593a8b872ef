"""docs/adding_a_decoding_method.md, followed in a copy of the repository."""

import jax.numpy as jnp
import pytest

from tests.followed_page import copied, options_of

PAGE = "adding_a_decoding_method.md"


@pytest.mark.parametrize("check", range(6))
def test_the_suite_runs_over_the_method_of_the_page(tree, check):
    checks = copied(tree, "transformer_jax.testing.methods").CHECKS
    assert len(checks) == 6
    copied(tree, "tests.decoding.test_methods").test_a_registered_method_passes(
        "min_p", checks[check]
    )


CASES = [(0.05, 4), (0.2, 3), (0.5, 2), (0.7, 1), (1.0, 1)]


@pytest.mark.parametrize(("min_p", "drawn"), CASES)
def test_the_test_of_the_page(tree, min_p, drawn):
    test = copied(tree, "tests.decoding.test_min_p")
    test.test_tokens_far_below_the_most_probable_one_are_not_drawn(min_p, drawn)


def test_the_test_of_the_page_can_fail(tree, monkeypatch):
    module = copied(tree, "transformer_jax.decoding.min_p")
    draw = module.draw
    monkeypatch.setattr(
        module, "draw", lambda keys, at, logits: draw(keys, at, jnp.zeros_like(logits))
    )
    test = copied(tree, "tests.decoding.test_min_p")
    with pytest.raises(AssertionError):
        test.test_tokens_far_below_the_most_probable_one_are_not_drawn(0.5, 2)


def test_flags_and_json_know_it(tree):
    config = copied(tree, "transformer_jax.config")
    MinP = copied(tree, "transformer_jax.decoding.min_p").MinP
    flags = {"decode.method": "min_p(num_samples=2)", "decode.method.min_p": "0.05"}
    changed = config.override(config.Config(), flags)
    assert changed.decode.method == MinP(num_samples=2, min_p=0.05)
    assert config.from_json(config.to_json(changed), "config.json") == changed


def test_the_page_of_options_knows_it(tree):
    assert "### min_p" in options_of(PAGE, tree)
