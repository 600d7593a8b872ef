"""Every registered mixer must pass the suite in every role that it does not refuse.

With small options (`small_options.py`), so that windows, blocks and chunks end within the
suite's sequences.
"""

from functools import cache

import pytest

from tests.contract.small_options import EXACTLY_CAUSAL, small_cross, small_mixer
from transformer_jax.mixers.registry import CROSS_MIXERS, MIXERS
from transformer_jax.ops import sparse_attention
from transformer_jax.testing import mixers as suite

CAUSAL = [n for n, c in MIXERS.items() if "decoder" not in c.refuses]
BIDIRECTIONAL = [n for n, c in MIXERS.items() if "encoder" not in c.refuses]


@pytest.fixture(autouse=True)
def several_blocks(monkeypatch):
    monkeypatch.setattr(sparse_attention, "_SHORTEST_BLOCK", 2)


@cache
def build(name: str, *, causal: bool, exactly_causal: bool = False):
    config = small_mixer(name, causal=causal, exactly_causal=exactly_causal)
    config.check(suite.context(causal=causal), frozenset())
    mixer = config.build(suite.context(causal=causal), suite.position(causal=causal))
    return mixer, suite.initialised(mixer)


@pytest.mark.parametrize("name", CAUSAL)
@pytest.mark.parametrize(
    "check",
    [
        suite.check_step_equals_parallel,
        suite.check_padding_and_batch_mates,
        suite.check_beams_permute,
        suite.check_gradients,
    ],
)
def test_decoder(name, check):
    check(*build(name, causal=True))


@pytest.mark.parametrize("name", CAUSAL)
def test_decoder_leaks_nothing(name):
    exactly = {"exactly_causal": True} if name in EXACTLY_CAUSAL else {}
    suite.check_no_leak(*build(name, causal=True, **exactly))


@pytest.mark.parametrize("name", BIDIRECTIONAL)
@pytest.mark.parametrize(
    "check",
    [suite.check_sees_both_ways, suite.check_padding_and_batch_mates, suite.check_gradients],
)
def test_encoder(name, check):
    check(*build(name, causal=False))


@pytest.mark.parametrize("name", list(CROSS_MIXERS))
def test_cross(name):
    suite.check_cross(small_cross(name).build(suite.context(causal=False)))
