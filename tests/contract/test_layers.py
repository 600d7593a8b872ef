"""Every registered norm and feed-forward network against the suite."""

import dataclasses

import pytest

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
    layer_suite.check_dropout(layer_suite.feed_forward(FEED_FORWARDS[kind](dropout_rate=0.5)))
