"""What the tests of `linear` and `performer` share."""

import jax.numpy as jnp

from tests.mixers.formula import assert_same_with_gradients
from tests.reference.naive_kernel_attention import naive_kernel_attention
from transformer_jax.mixers.registry import MIXERS
from transformer_jax.positions.base import Position, PositionConfig
from transformer_jax.testing import mixers as suite


class Turn(Position):
    """Rotary positions on any number of features, written without tricks."""

    def rotate(self, q, k, q_positions, k_positions):
        return self.turn(q, q_positions), self.turn(k, k_positions)

    def turn(self, x, positions):
        first, second = jnp.split(x, 2, axis=-1)
        rates = 0.7 ** jnp.arange(1, first.shape[-1] + 1)
        angle = positions[:, None, None] * rates
        cos, sin = jnp.cos(angle), jnp.sin(angle)
        return jnp.concatenate([first * cos - second * sin, first * sin + second * cos], axis=-1)


def turned_position(*, causal):
    return Turn(PositionConfig(), suite.context(causal=causal))


def build(name, *, causal, turned=True, **options):
    position = turned_position(causal=causal) if turned else suite.position(causal=causal)
    mixer = MIXERS[name](**options).build(suite.context(causal=causal), position)
    return mixer, suite.initialised(mixer)


def assert_module_is_the_formula(mixer, variables, features, *, causal):
    """Outputs and gradients, with rotation in the numerator only, and padding."""
    at = jnp.arange(suite.LENGTH)

    def by_hand(bound, x):
        k, v = bound.heads.keys_values(x)
        norm_q, norm_k = features(bound.heads.queries(x)), features(k)
        q, k = bound.position.rotate(norm_q, norm_k, at, at)
        y = naive_kernel_attention(q, k, v, suite.MASK, causal=causal, norm_q=norm_q, norm_k=norm_k)
        return bound.heads.join(y)

    assert_same_with_gradients(mixer, variables, by_hand, suite.inputs(), suite.MASK)
