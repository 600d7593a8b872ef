"""A pattern of mixers over the depth: it is cycled, builds, and decodes as it trains."""

from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import transformer_jax as tj
from tests.small import small_model
from transformer_jax.models import api
from transformer_jax.models.config import layer_mixers
from transformer_jax.positions.registry import POSITIONS

SMALL = small_model(20, both=tj.StackConfig(num_layers=3), d_ff=16, num_heads=4, max_length=7)
IDS = jnp.array([[5, 6, 7, 2], [8, 9, 2, 0]])
MASK = IDS > 0


def test_a_pattern_is_cycled_over_the_depth():
    pattern = (tj.Window(window=2), tj.Window(window=4), tj.Full())
    stack = tj.StackConfig(num_layers=5, mixers=pattern)
    assert layer_mixers(stack) == [*pattern, *pattern[:2]]
    assert layer_mixers(tj.StackConfig(num_layers=1, mixers=pattern)) == [tj.Window(window=2)]


def test_two_layers_of_one_kind_have_options_of_their_own():
    stack = tj.StackConfig(num_layers=2, mixers=(tj.S4D(state_size=4), tj.S4D(state_size=6)))
    params = api.abstract_params(replace(SMALL, encoder=stack))["encoder"]
    sizes = [params[f"blocks_{i}"]["mixer"]["systems"]["frequency"].shape[1] for i in range(2)]
    assert sizes == [2, 3]


@pytest.mark.parametrize("position", ["none", "rope", "t5"])
def test_a_hybrid_decodes_as_it_trains(position):
    stack = tj.StackConfig(
        num_layers=3, mixers=(tj.SSRU(), tj.Full()), position=POSITIONS[position]()
    )
    config = replace(SMALL, encoder=stack, decoder=stack)
    params = jax.jit(api.init, static_argnums=0)(config, jax.random.key(0))
    for stack in ("encoder", "decoder"):
        kinds = ["heads" in params[stack][f"blocks_{i}"]["mixer"] for i in range(3)]
        assert kinds == [False, True, False]
    target_in = api.shift_right(IDS)
    want = jax.jit(api.apply, static_argnums=0)(config, params, IDS, MASK, target_in, MASK)
    encode = jax.jit(api.encode, static_argnums=0, static_argnames="max_length")
    sentence, state = encode(config, params, IDS, MASK, max_length=4)
    decode_step = jax.jit(api.decode_step, static_argnums=0)
    for t in range(4):
        tokens = target_in[:, t : t + 1]
        got, state = decode_step(config, params, tokens, jnp.int32(t), state, sentence)
        real = np.asarray(MASK[:, t])
        np.testing.assert_allclose(got[real, 0], want[real, t], atol=2e-5)
