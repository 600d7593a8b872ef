"""The suite must reject broken mixers."""

import jax
import jax.numpy as jnp
import pytest

from transformer_jax.mixers.base import CrossMixer, Mixer
from transformer_jax.mixers.full_attention import (
    Full,
    FullAttention,
    FullCross,
    FullCrossAttention,
    KeyValueCache,
    Memory,
)
from transformer_jax.testing import mixers as suite


class Leaks(FullAttention):
    """Reads the next token although it is causal."""

    def __call__(self, x, mask):
        y = super().__call__(x, mask)
        return y + 1e-3 * jnp.roll(x, -1, axis=1)


class IgnoresPadding(Mixer):
    """A mean over all tokens, padding included."""

    def __call__(self, x, mask):
        return x + x.mean(axis=1, keepdims=True)


class ReversesByThePaddedLength(Mixer):
    """Zeroes padding, but counts positions from the end of the batch's longest row."""

    def __call__(self, x, mask):
        x = x * mask[..., None]
        decay = 0.5 ** jnp.arange(x.shape[1])
        return x + (decay[None, ::-1, None] * x).sum(axis=1, keepdims=True)


class GrowsItsState(FullAttention):
    def step(self, x, state, position):
        y, state = super().step(x, state, position)
        return y, KeyValueCache(
            *(jnp.pad(s, [(0, 1), (0, 0), (0, 0), (0, 0)]) for s in (state.key, state.value))
        )


class ForgetsTheFirst(FullAttention):
    def step(self, x, state, position):
        return super().step(x, jax.tree.map(lambda s: s.at[0].set(0.0), state), position)


class MixesRows(FullAttention):
    """Each row's step reads the state of its neighbour: wrong once beams are reordered."""

    def step(self, x, state, position):
        y, state = super().step(x, state, position)
        return y + 0.1 * jnp.roll(state.value.sum((0, 2, 3)), 1)[:, None], state


class HasADeadParameter(FullAttention):
    def __call__(self, x, mask):
        return jax.lax.stop_gradient(super().__call__(x, mask)) + x


class ReadsPaddedMemory(FullCrossAttention):
    def project(self, memory, mask):
        projected = super().project(memory, mask)
        return Memory(projected.key, projected.value, jnp.ones_like(mask))


class ReadsAcrossQueries(FullCrossAttention):
    def read(self, x, projected):
        return super().read(x + x.mean(1, keepdims=True), projected)


def build(cls: type[Mixer]):
    mixer = cls(Full(), suite.context(causal=True), suite.position(causal=True))
    return mixer, suite.initialised(mixer)


@pytest.mark.parametrize(
    ("cls", "check"),
    [
        (Leaks, suite.check_no_leak),
        (Leaks, suite.check_step_equals_parallel),
        (IgnoresPadding, suite.check_padding_and_batch_mates),
        (ReversesByThePaddedLength, suite.check_padding_and_batch_mates),
        (GrowsItsState, suite.check_step_equals_parallel),
        (ForgetsTheFirst, suite.check_step_equals_parallel),
        (MixesRows, suite.check_beams_permute),
        (HasADeadParameter, suite.check_gradients),
    ],
)
def test_rejected(cls, check):
    with pytest.raises(AssertionError):
        check(*build(cls))


@pytest.mark.parametrize("cls", [ReadsPaddedMemory, ReadsAcrossQueries])
def test_cross_rejected(cls: type[CrossMixer]):
    with pytest.raises(AssertionError):
        suite.check_cross(cls(FullCross(), suite.context(causal=False)))
