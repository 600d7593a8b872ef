"""Every registered mixer against the suite, in every role it does not refuse."""

from functools import cache

import pytest
import suite

from transformer_jax.mixers.registry import CROSS_MIXERS, MIXERS

CAUSAL = [n for n, c in MIXERS.items() if "decoder" not in c.refuses]
BIDIRECTIONAL = [n for n, c in MIXERS.items() if "encoder" not in c.refuses]


@cache
def build(name: str, *, causal: bool):
    cls = MIXERS[name]
    mixer = cls(
        context=suite.context(causal=causal),
        options=cls.Options(),
        position=suite.position(causal=causal),
    )
    return mixer, suite.initialised(mixer)


@pytest.mark.parametrize("name", CAUSAL)
@pytest.mark.parametrize(
    "check",
    [
        suite.check_step_equals_parallel,
        suite.check_no_leak,
        suite.check_padding_and_batch_mates,
        suite.check_beams_permute,
        suite.check_gradients,
    ],
)
def test_decoder(name, check):
    check(*build(name, causal=True))


@pytest.mark.parametrize("name", BIDIRECTIONAL)
@pytest.mark.parametrize(
    "check",
    [suite.check_sees_both_ways, suite.check_padding_and_batch_mates, suite.check_gradients],
)
def test_encoder(name, check):
    check(*build(name, causal=False))


@pytest.mark.parametrize("name", list(CROSS_MIXERS))
def test_cross(name):
    cls = CROSS_MIXERS[name]
    suite.check_cross(cls(context=suite.context(causal=False), options=cls.Options()))
