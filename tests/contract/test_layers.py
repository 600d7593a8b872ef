"""Every registered norm and feed-forward network against the suite."""

import dataclasses

import jax
import numpy as np
import pytest

from transformer_jax.layers.feed_forward import Mlp
from transformer_jax.layers.registry import FEED_FORWARDS, NORMS
from transformer_jax.testing import layers as layer_suite

DROPPING = [
    kind
    for kind, config in FEED_FORWARDS.items()
    if "dropout_rate" in {field.name for field in dataclasses.fields(config)}
]


@pytest.mark.parametrize("kind", NORMS)
@pytest.mark.parametrize("check", layer_suite.EVERY_NORM)
def test_norm(kind, check):
    check(layer_suite.norm(NORMS[kind]()))


@pytest.mark.parametrize("kind", FEED_FORWARDS)
@pytest.mark.parametrize("check", layer_suite.EVERY_FEED_FORWARD)
def test_feed_forward(kind, check):
    check(layer_suite.feed_forward(FEED_FORWARDS[kind]()))


@pytest.mark.parametrize("kind", DROPPING)
def test_dropout_of_a_feed_forward(kind):
    check_dropout(layer_suite.feed_forward(FEED_FORWARDS[kind](dropout_rate=0.5)))


def check_dropout(build):
    """Dropout is on exactly where a key is given: same key, same output; no key, no dropout."""
    module = build(layer_suite.DTYPES)
    x = layer_suite.inputs(64)
    variables = layer_suite.initialised(module)

    def apply(seed):
        rngs = {} if seed is None else {"dropout": jax.random.key(seed)}
        return module.apply(variables, x, rngs=rngs)

    np.testing.assert_array_equal(apply(None), apply(None))
    np.testing.assert_array_equal(apply(1), apply(1))
    assert (apply(1) != apply(None)).any(), "a key changes nothing"
    assert (apply(1) != apply(2)).any(), "two keys drop the same"


def test_rejects_dropout_without_effect():
    with pytest.raises(AssertionError, match="changes nothing"):
        check_dropout(layer_suite.feed_forward(Mlp(dropout_rate=0.0)))
