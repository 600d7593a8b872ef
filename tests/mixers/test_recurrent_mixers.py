"""Recurrent mixers against the same mixers token by token.

Outputs and gradients, at an odd length, with padding, in both roles.
"""

from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import linen as nn

from tests.mixers.formula import assert_same_with_gradients
from tests.reference import naive_recurrent_mixers as naive
from transformer_jax.mixers.base import MixerContext
from transformer_jax.mixers.registry import MIXERS
from transformer_jax.positions.none import NoPosition
from transformer_jax.testing import mixers as suite
from transformer_jax.testing.layers import noisy

D, HEADS, LENGTHS = 8, 2, (5, 3)
CONTEXT = MixerContext(d_model=D, num_heads=HEADS, head_dim=4, max_length=5, causal=True)
MASK = jnp.arange(5)[None] < jnp.array(LENGTHS)[:, None]
X = jax.random.normal(jax.random.key(0), (2, 5, D))
#: Sizes that make several chunks, groups and windows of five tokens; a word after the name tells
#: forms of one mixer apart.
SMALL = {
    "gated_deltanet": {"conv_width": 3, "chunk": 2},
    "gated_deltanet channels": {"decay": "channel", "gate": "sigmoid", "expand": 2, "chunk": 2},
    "gated_deltanet apart": {"decay": "channel", "strength": "apart", "decay_rank": 2},
    "gated_deltanet plain": {"decay": "none", "conv_width": 0, "chunk": 4},
    "gla": {"chunk": 2, "decay_rank": 2},
    "gla heads": {"decay": "head", "gate": "sigmoid", "expand": 2, "conv_width": 3, "chunk": 2},
    "gla retention": {"decay": "fixed", "chunk": 2},
    "gla sums": {"decay": "none", "chunk": 4},
    "h3": {"head_dim": 2, "shift_size": 3, "state_size": 4},
    "h3 long": {"head_dim": 1, "shift_size": 8, "state_size": 4},
    "mamba": {"state_size": 3, "conv_width": 3, "chunk": 2, "dt_rank": 2},
    "rwkv": {"lerp_rank": 3, "decay_rank": 2, "chunk": 2},
    "rwkv 7": {"version": 7, "decay_rank": 2, "chunk": 2},
    "s4": {"state_size": 4},
    "s4d": {"state_size": 4},
    "ssd": {"state_size": 3, "groups": 2, "conv_width": 3, "chunk": 2},
    "ssru": {},
}
NAMES = list(SMALL)


def build(name, *, causal=True, **options):
    context = replace(CONTEXT, causal=causal)
    kind = MIXERS[name.partition(" ")[0]]
    return kind(**SMALL.get(name, {}) | options).build(context, NoPosition().build(context))


def noisy_params(mixer):
    """Initial values plus noise, so that zeros and equal values hide no mistake."""
    return noisy(nn.unbox(jax.jit(mixer.init)(jax.random.key(1), X, MASK)))["params"]


def assert_the_loop_gives_the_same(loop, mixer):
    """Of each row alone, cut to its real tokens; zeros after them."""

    def by_loop(bound, x_BLD):
        params = bound.variables["params"]
        rows = [
            loop(params, x[:n], mixer.config, mixer.context)
            for x, n in zip(x_BLD, LENGTHS, strict=True)
        ]
        return jnp.stack([jnp.pad(row, ((0, 5 - len(row)), (0, 0))) for row in rows])

    variables = {"params": noisy_params(mixer)}
    assert_same_with_gradients(mixer, variables, by_loop, X, MASK)


@pytest.mark.parametrize("name", NAMES)
def test_decoder_equals_the_loop(name):
    assert_the_loop_gives_the_same(naive.MIXERS[name.partition(" ")[0]], build(name))


@pytest.mark.parametrize("name", [name for name in NAMES if " " in name])
def test_a_step_of_each_form_is_that_of_the_whole_sequence(name):
    """The forms by default are the contract suite's (tests/contract)."""
    kind = MIXERS[name.partition(" ")[0]]
    mixer = kind(**SMALL[name]).build(suite.context(causal=True), suite.position(causal=True))
    suite.check_step_equals_parallel(mixer, suite.initialised(mixer))


@pytest.mark.parametrize("direct_length", [0, 64], ids=["fft", "definition"])
@pytest.mark.parametrize("name", ["s4", "s4d"])
def test_the_encoder_equals_the_loop_both_ways(name, direct_length):
    mixer = build(name, causal=False, direct_length=direct_length)
    assert_the_loop_gives_the_same(naive.MIXERS[name], mixer)


@pytest.mark.parametrize("options", [{}, {"share_weights": True}, {"combine": "concat"}])
def test_an_encoder_of_causal_mixers_is_two_loops(options):
    """The second begins at the last real token."""
    second = "forwards" if "share_weights" in options else "backwards"

    def loops(p, x, *rest):
        ahead = naive.ssru(p["forwards"], x, *rest)
        back = naive.ssru(p[second], x[::-1], *rest)[::-1]
        both = jnp.concatenate([ahead, back], axis=-1)
        return naive.linear(p["join"], both) if "join" in p else ahead + back

    assert_the_loop_gives_the_same(loops, build("ssru", causal=False, **options))


def test_one_pass_of_ssd_equals_its_matrix():
    """Each pair of a row's real tokens has the decays between them, whichever comes first."""

    mixer = build("ssd", causal=False, combine="one_pass")
    params, o = noisy_params(mixer), mixer.config
    assert "forwards" not in params

    def by_matrix(params, x):
        length = len(x)
        padded = jnp.pad(naive.linear(params["into"], x), ((1, 1), (0, 0)))
        taps = [params["conv"]["kernel"][w] * padded[w : w + length] for w in range(3)]  # centered
        u = jax.nn.silu(params["conv"]["bias"] + sum(taps))
        values = u[:, : 2 * D].reshape(length, -1, 4)
        b, c = jnp.moveaxis(u[:, 2 * D :].reshape(length, 2, o.groups, o.state_size), 1, 0)
        delta = jnp.log1p(jnp.exp(naive.linear(params["delta"], x) + params["delta_bias"]))
        sums = jnp.cumsum(delta * jnp.exp(params["log_decay"]), axis=0)
        decays = jnp.exp(-jnp.abs(sums[:, None] - sums[None]))  # [L, L, heads]
        scores = jnp.repeat(jnp.einsum("tgn,sgn->tsg", c, b), values.shape[1] // o.groups, axis=2)
        y = jnp.einsum("tsh,sh,shk->thk", scores * decays, delta, values)
        y = (y + params["skip"][:, None] * values).reshape(length, -1)
        y = y * jax.nn.silu(naive.linear(params["gate"], x))
        parts = y.reshape(length, o.groups, -1)
        parts = parts / jnp.sqrt((parts**2).mean(-1, keepdims=True) + 1e-5)
        return naive.linear(params["out"], parts.reshape(length, -1) * params["norm"]["scale"])

    got = jax.jit(lambda p: mixer.apply({"params": p}, X, MASK))(params)
    for row, length in enumerate(LENGTHS):
        want = jax.jit(by_matrix)(params, X[row, :length])
        np.testing.assert_allclose(got[row, :length], want, atol=1e-5)


def test_one_pass_keeps_the_contract():
    one_pass = MIXERS["ssd"](combine="one_pass", chunk=2, state_size=4)
    suite.check_mixer(one_pass, causal=False)


@pytest.mark.parametrize("name", [*NAMES, "linear", "performer", "window"])
def test_the_state_does_not_grow_with_the_length(name):
    mixer = build(name)
    params = nn.unbox(jax.eval_shape(mixer.init, jax.random.key(1), X, MASK))

    def state(length):
        return jax.eval_shape(lambda p: mixer.apply(p, 2, length, method="init_state"), params)

    short = state(5)
    assert short == state(5000)
    assert all(leaf.dtype == jnp.float32 for leaf in jax.tree.leaves(short))


@pytest.mark.parametrize("head_dim", [1, 8])
def test_h3_begins_with_an_output_smaller_than_its_input(head_dim):
    """The output has three factors; the residual stream, to which it is added, has one."""
    context = replace(CONTEXT, d_model=64)
    mixer = MIXERS["h3"](head_dim=head_dim).build(context, NoPosition().build(context))
    x = jax.random.normal(jax.random.key(0), (4, 32, 64))
    y, _ = jax.jit(mixer.init_with_output)(jax.random.key(1), x, jnp.ones(x.shape[:2], bool))
    assert jnp.sqrt((y**2).mean()) < 1
