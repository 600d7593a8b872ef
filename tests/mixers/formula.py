"""A mixer's module against its formula, written out by hand; a position scheme that rotates."""

import jax
import jax.numpy as jnp
import numpy as np

from transformer_jax.positions.base import Position, PositionConfig
from transformer_jax.testing import mixers as suite


def assert_same_with_gradients(mixer, variables, by_hand, x, mask, *, rtol=1e-4, atol=1e-4):
    """Equal outputs at real tokens, and gradients of the parameters and of x, all of which count.

    Args:
        by_hand: a function of (the module bound to its parameters, x).
        rtol, atol: of the gradients.
    """

    @jax.jit
    def both(variables, x):
        def loss(variables, x, is_module):
            bound = mixer.bind(variables)
            y = bound(x, mask) if is_module else by_hand(bound, x)
            y = jnp.where(mask[..., None], y, 0.0)
            return (y**2).sum(), y

        gradient = jax.grad(loss, (0, 1), has_aux=True)
        return gradient(variables, x, True), gradient(variables, x, False)

    (got_grads, got), (want_grads, want) = both(variables, x)
    np.testing.assert_allclose(got, want, atol=2e-5)
    for got_grad, want_grad in zip(*map(jax.tree.leaves, (got_grads, want_grads)), strict=True):
        assert np.abs(want_grad).max() > 0  # nor NaN
        np.testing.assert_allclose(got_grad, want_grad, rtol=rtol, atol=atol)


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


def turned(config, *, causal):
    """A mixer under this scheme, and its variables."""
    context = suite.context(causal=causal)
    mixer = config.build(context, Turn(PositionConfig(), context))
    return mixer, suite.initialised(mixer)
