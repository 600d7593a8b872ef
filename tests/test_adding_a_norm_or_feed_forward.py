"""docs/adding_a_norm_or_feed_forward.md, followed in a copy of the repository."""

import jax
import pytest

from tests.followed_page import copied, options_of

PAGE = "adding_a_norm_or_feed_forward.md"


def test_the_suite_runs_over_the_layers_of_the_page(tree):
    contract = copied(tree, "tests.contract.test_layers")
    suite = copied(tree, "transformer_jax.testing.layers")
    assert "dynamic_tanh" in contract.NORMS and "maxout" in contract.FEED_FORWARDS
    for check in suite.EVERY_NORM:
        contract.test_norm("dynamic_tanh", check)
    for check in suite.EVERY_FEED_FORWARD:
        contract.test_feed_forward("maxout", check)


@pytest.mark.parametrize("name", ["dynamic_tanh", "maxout"])
def test_the_tests_of_the_page(tree, name):
    getattr(copied(tree, "tests.layers.test_dynamic_tanh_and_maxout"), f"test_{name}")()


@pytest.mark.parametrize(
    ("name", "module"), [("dynamic_tanh", "Squash"), ("maxout", "MaxoutNetwork")]
)
def test_the_tests_of_the_page_can_fail(tree, monkeypatch, name, module):
    cls = getattr(copied(tree, f"transformer_jax.layers.{name}"), module)
    call = cls.__call__
    monkeypatch.setattr(cls, "__call__", lambda self, x: call(self, x) * 1.01)
    with pytest.raises(AssertionError):
        getattr(copied(tree, "tests.layers.test_dynamic_tanh_and_maxout"), f"test_{name}")()


def test_the_page_of_options_knows_them(tree):
    options_of(PAGE, tree)


def test_a_model_has_them(tree):
    from transformer_jax.config import Config, override
    from transformer_jax.models import api

    sizes = {"source_vocab_size": "20", "target_vocab_size": "20", "d_model": "16", "d_ff": "16"}
    flags = sizes | {"norm": "dynamic_tanh(alpha=0.8)", "feed_forward": "maxout(pieces=3)"}
    model = override(Config(), {f"model.{key}": value for key, value in flags.items()}).model
    block = jax.eval_shape(lambda: api.init(model, jax.random.key(0)))["decoder"]["blocks_0"]
    assert set(block["feed_forward"]) == {"up_0", "up_1", "up_2", "down"}
    assert set(block["mixer_residual"]["norm"]) == {"alpha", "scale", "bias"}
