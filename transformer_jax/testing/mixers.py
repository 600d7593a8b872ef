"""What every sequence mixer must satisfy, as functions that raise AssertionError.

They take built modules, so that the suite itself can be tried on broken ones.
"""

from functools import cache, partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import linen as nn
from jax import Array

from transformer_jax.mixers.base import (
    CrossMixer,
    CrossMixerConfig,
    Mixer,
    MixerConfig,
    MixerContext,
)
from transformer_jax.ops.key_value_cache import map_state
from transformer_jax.positions.base import Position, PositionConfig
from transformer_jax.positions.none import NoPosition
from transformer_jax.testing.layers import check_reached, noisy

D, HEADS, BATCH, LENGTH, MEMORY = 16, 4, 3, 7, 5
TOLERANCE = 2e-5
NONE = NoPosition()
MASK = np.arange(LENGTH)[None] < np.array([LENGTH, 4, 1])[:, None]


def context(*, causal: bool) -> MixerContext:
    """The size of the suite's models."""
    return MixerContext(
        d_model=D, num_heads=HEADS, head_dim=D // HEADS, max_length=LENGTH, causal=causal
    )


def position(config: PositionConfig = NONE, *, causal: bool) -> Position:
    """A position scheme of that size."""
    return config.build(context(causal=causal))


def inputs(seed: int = 0) -> Array:
    """What mixers read, [BATCH, LENGTH, D]."""
    return jax.random.normal(jax.random.key(seed), (BATCH, LENGTH, D))


def initialised(mixer: Mixer) -> Any:
    """Variables with nothing left at zero."""
    return noisy(nn.unbox(jax.jit(mixer.init)(jax.random.key(1), inputs(), MASK)))


@cache
def _programs(mixer: Mixer) -> tuple[Any, Any]:
    """`__call__`, and the gradients of its weighted outputs. Compiling is most of the time."""

    def loss(variables: Any, x: Array, weights: Array) -> Array:
        return (mixer.apply(variables, x, MASK) * weights).sum()

    return jax.jit(mixer.apply), jax.jit(jax.grad(loss, (0, 1)))


def parallel(mixer: Mixer, variables: Any, x: Array, mask: Any = MASK) -> Array:
    """What `__call__` gives, jitted."""
    return _programs(mixer)[0](variables, x, mask)


def gradients(mixer: Mixer, variables: Any, weights: Any) -> tuple[Any, Array]:
    """Of the sum of weighted outputs, by the variables and by the inputs."""
    return _programs(mixer)[1](variables, inputs(), weights)


def check_rows(leaf: Array, axis: int = 0) -> Array:
    """Checks that the rows of a state leaf are on this axis, and returns it."""
    wrong = f"a state leaf of shape {leaf.shape} has not its {BATCH} rows on axis {axis}"
    assert leaf.shape[axis] == BATCH, wrong
    return leaf


def check_step_equals_parallel(mixer: Mixer, variables: Any) -> None:
    """Unrolling `step` gives `__call__`, with one trace for all steps."""
    x, traces = inputs(), 0

    @jax.jit
    def step(x_BD: Array, state: Any, at: Array) -> tuple[Array, Any]:
        nonlocal traces
        traces += 1
        return mixer.apply(variables, x_BD, state, at, method="step")

    state = mixer.apply(variables, BATCH, LENGTH, method="init_state")
    map_state(check_rows, state, lambda cache: jax.tree.map(partial(check_rows, axis=1), cache))
    outputs = []
    for t in range(LENGTH):
        y, next_state = step(x[:, t], state, jnp.int32(t))
        shapes = [jax.tree.map(lambda s: (s.shape, s.dtype), s) for s in (state, next_state)]
        assert shapes[0] == shapes[1], "the state changed its structure"
        outputs.append(y)
        state = next_state
    got, want = jnp.stack(outputs, 1), parallel(mixer, variables, x)
    np.testing.assert_allclose(got[MASK], want[MASK], atol=TOLERANCE)
    assert traces == 1, f"{traces} traces for {LENGTH} steps"


def influences(mixer: Mixer, variables: Any) -> np.ndarray:
    """[t, s]: how much output t depends on input s, in the first row, which has no padding."""
    rows = []
    for t in range(LENGTH):
        weights = np.zeros((BATCH, LENGTH, D), np.float32)
        weights[0, t] = 1.0
        rows.append(np.asarray(gradients(mixer, variables, weights)[1])[0])
    return np.abs(rows).sum(-1)


def check_no_leak(mixer: Mixer, variables: Any) -> None:
    """d y[t] / d x[s] is exactly zero for s > t, and not for all s <= t.

    Not for every s <= t: with a single key to attend to, the weight is 1 for every query.
    """
    influence = influences(mixer, variables)
    assert (influence[np.triu_indices(LENGTH, 1)] == 0).all(), "the future leaks into the past"
    assert (influence.sum(axis=1) > 0).all(), "an output depends on nothing"
    assert influence[-1, -1] > 0 and influence[-1, 0] > 0, "the past has no influence"


def check_sees_both_ways(mixer: Mixer, variables: Any) -> None:
    """An encoder's output depends on what follows."""
    influence = influences(mixer, variables)
    assert influence[0, -1] > 0 and influence[-1, 0] > 0


def check_padding_and_batch_mates(mixer: Mixer, variables: Any) -> None:
    """The values at padding, its amount and the other rows have no effect on a real token."""
    x = inputs()
    plain = parallel(mixer, variables, x)
    garbage = jnp.where(MASK[..., None], x, 1e3)
    got = parallel(mixer, variables, garbage)
    np.testing.assert_allclose(got[MASK], plain[MASK], atol=TOLERANCE)
    for row in range(BATCH):
        real = int(MASK[row].sum())
        other_mates = jnp.where((jnp.arange(BATCH) == row)[:, None, None], x, inputs(seed=1))
        got = parallel(mixer, variables, other_mates)
        np.testing.assert_allclose(got[row, :real], plain[row, :real], atol=TOLERANCE)
        if row == 1:  # alone, and without the padding
            short = parallel(mixer, variables, x[row : row + 1, :real], MASK[row : row + 1, :real])
            np.testing.assert_allclose(short[0], plain[row, :real], atol=TOLERANCE)


def check_beams_permute(mixer: Mixer, variables: Any) -> None:
    """Permuting the rows of a state and stepping commute."""
    order = jnp.array([0, 2, 1])  # not a rotation
    x = inputs()
    state = mixer.apply(variables, BATCH, LENGTH, method="init_state")
    state = map_state(lambda leaf: leaf, state, lambda cache: cache.for_beams(1, BATCH))
    step = jax.jit(partial(mixer.apply, variables, method="step"))
    for t in range(2):
        _, state = step(x[:, t], state, jnp.int32(t))
    shuffled = map_state(lambda leaf: leaf[order], state, lambda cache: cache.select(order[None]))
    now = jnp.int32(2)
    y, _ = step(x[:, 2], state, now)
    y_shuffled, _ = step(x[order, 2], shuffled, now)
    np.testing.assert_allclose(y_shuffled, y[order], atol=TOLERANCE)


def check_gradients(mixer: Mixer, variables: Any) -> None:
    """Every parameter gets a finite gradient that is not zero."""
    weights = MASK[..., None] * jax.random.normal(jax.random.key(5), (BATCH, LENGTH, D))
    check_reached(gradients(mixer, variables, weights)[0])


def check_cross(mixer: CrossMixer) -> None:
    """Each query reads on its own, and padding in the memory has no effect."""
    x = inputs()
    memory = jax.random.normal(jax.random.key(7), (BATCH, MEMORY, D))
    mask = jnp.arange(MEMORY)[None] < jnp.array([MEMORY, 2, 1])[:, None]

    variables = nn.unbox(jax.jit(mixer.init)(jax.random.key(1), x, memory, mask))
    run = jax.jit(partial(mixer.apply, variables))
    plain = run(x, memory, mask)
    one_by_one = [run(x[:, t : t + 1], memory, mask) for t in range(LENGTH)]
    np.testing.assert_allclose(jnp.concatenate(one_by_one, 1), plain, atol=TOLERANCE)
    garbage = jnp.where(mask[..., None], memory, 1e3)
    got = run(x, garbage, mask)
    np.testing.assert_allclose(got, plain, atol=TOLERANCE)
    for row in range(BATCH):
        real = int(mask[row].sum())
        alone = run(x[row : row + 1], memory[row : row + 1, :real], mask[row : row + 1, :real])
        np.testing.assert_allclose(alone[0], plain[row], atol=TOLERANCE)


def check_mixer(config: MixerConfig, *, causal: bool, scheme: PositionConfig = NONE) -> None:
    """Runs every check on a mixer in the decoder (`causal`) or in the encoder.

    Args:
        config: with options for sequences of some tokens, such as small windows and chunks.
        causal: which role.
        scheme: the position scheme.
    """
    config.check(context(causal=causal), position(scheme, causal=causal).hooks())
    mixer = config.build(context(causal=causal), position(scheme, causal=causal))
    variables = initialised(mixer)
    check_padding_and_batch_mates(mixer, variables)
    check_gradients(mixer, variables)
    if not causal:
        return check_sees_both_ways(mixer, variables)
    check_step_equals_parallel(mixer, variables)
    check_beams_permute(mixer, variables)
    check_no_leak(mixer, variables)


def check_cross_mixer(config: CrossMixerConfig) -> None:
    """Runs every check on a reader of the memory."""
    config.check(context(causal=False))
    check_cross(config.build(context(causal=False)))
