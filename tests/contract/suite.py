"""What every sequence mixer must satisfy, as functions that raise AssertionError.

They take built modules, so that the suite itself can be tried on broken ones.
"""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import linen as nn

from transformer_jax.mixers.base import CrossMixer, Mixer, MixerContext
from transformer_jax.positions.base import Position
from transformer_jax.positions.registry import POSITIONS

D, HEADS, BATCH, LENGTH, MEMORY = 16, 4, 3, 7, 5
TOLERANCE = 2e-5
DTYPES = {"dtype": "float32", "matmul_dtype": "float32", "param_dtype": "float32"}
MASK = jnp.arange(LENGTH) < jnp.array([LENGTH, 4, 1])[:, None]


def context(*, causal: bool) -> MixerContext:
    return MixerContext(
        d_model=D,
        num_heads=HEADS,
        head_dim=D // HEADS,
        causal=causal,
        max_length=LENGTH,
        attention_dropout_rate=0.0,
        dtypes=DTYPES,
    )


def position(name: str = "none", *, causal: bool) -> Position:
    return POSITIONS[name](
        d_model=D, num_heads=HEADS, head_dim=D // HEADS, max_length=LENGTH, causal=causal
    )


def inputs(seed: int = 0) -> jax.Array:
    return jax.random.normal(jax.random.key(seed), (BATCH, LENGTH, D))


def initialised(mixer: Mixer) -> Any:
    variables = mixer.init(jax.random.key(1), inputs(), MASK, deterministic=True)
    # Zero initialisations (biases, gates) would hide what passes through them.
    leaves, tree = jax.tree.flatten(nn.unbox(variables))
    keys = jax.random.split(jax.random.key(2), len(leaves))
    noisy = [x + 0.1 * jax.random.normal(k, x.shape) for x, k in zip(leaves, keys, strict=True)]
    return jax.tree.unflatten(tree, noisy)


def parallel(mixer: Mixer, variables: Any, x: jax.Array, mask: jax.Array = MASK) -> jax.Array:
    return mixer.apply(variables, x, mask, deterministic=True)


def check_step_equals_parallel(mixer: Mixer, variables: Any) -> None:
    """Unrolling `step` gives `__call__`, with one trace for all steps."""
    x, traces = inputs(), 0

    @jax.jit
    def step(x_BD: jax.Array, state: Any, at: jax.Array) -> tuple[jax.Array, Any]:
        nonlocal traces
        traces += 1
        return mixer.apply(variables, x_BD, state, at, method="step")

    state = mixer.apply(variables, BATCH, LENGTH, method="init_state")
    for leaf in jax.tree.leaves(state):
        assert leaf.shape[0] == BATCH, f"a state leaf of shape {leaf.shape} is not batch first"
    outputs = []
    for t in range(LENGTH):
        y, next_state = step(x[:, t], state, jnp.int32(t))
        shapes = [jax.tree.map(lambda s: (s.shape, s.dtype), s) for s in (state, next_state)]
        assert shapes[0] == shapes[1], "the state changed its structure"
        outputs.append(y)
        state = next_state
    want = np.where(MASK[..., None], parallel(mixer, variables, x), 0.0)
    got = np.where(MASK[..., None], jnp.stack(outputs, 1), 0.0)
    np.testing.assert_allclose(got, want, atol=TOLERANCE)
    assert traces == 1, f"{traces} traces for {LENGTH} steps"


def check_no_leak(mixer: Mixer, variables: Any) -> None:
    """d y[t] / d x[s] is exactly zero for s > t, and not for the s <= t."""
    full = jnp.ones((1, LENGTH), bool)
    jacobian = jax.jacobian(lambda x: parallel(mixer, variables, x, full)[0].sum(-1))(inputs()[:1])
    influence = np.abs(np.asarray(jacobian)[:, 0]).sum(-1)  # [t, s]
    assert (influence[np.triu_indices(LENGTH, 1)] == 0).all(), "the future leaks into the past"
    assert (np.diag(influence) > 0).all() and influence[-1, 0] > 0, "the past has no influence"


def check_sees_both_ways(mixer: Mixer, variables: Any) -> None:
    """An encoder's output depends on what follows."""
    full = jnp.ones((1, LENGTH), bool)
    jacobian = jax.jacobian(lambda x: parallel(mixer, variables, x, full)[0].sum(-1))(inputs()[:1])
    influence = np.abs(np.asarray(jacobian)[:, 0]).sum(-1)
    assert influence[0, -1] > 0 and influence[-1, 0] > 0


def check_padding_and_batch_mates(mixer: Mixer, variables: Any) -> None:
    """Neither what stands at padding, how much there is nor the other rows change a real token."""
    x = inputs()
    plain = parallel(mixer, variables, x)
    garbage = jnp.where(MASK[..., None], x, 1e3)
    got = parallel(mixer, variables, garbage)
    np.testing.assert_allclose(
        np.where(MASK[..., None], got, 0), np.where(MASK[..., None], plain, 0), atol=TOLERANCE
    )
    for row in range(BATCH):
        real = int(MASK[row].sum())
        alone = parallel(mixer, variables, x[row : row + 1], MASK[row : row + 1])
        np.testing.assert_allclose(alone[0, :real], plain[row, :real], atol=TOLERANCE)
    real = int(MASK[1].sum())
    unpadded = parallel(mixer, variables, x[1:2, :real], MASK[1:2, :real])
    np.testing.assert_allclose(unpadded[0], plain[1, :real], atol=TOLERANCE)


def check_beams_permute(mixer: Mixer, variables: Any) -> None:
    """Permuting the rows of a state and stepping commute."""
    order = jnp.array([0, 2, 1])  # not a rotation
    x = inputs()
    state = mixer.apply(variables, BATCH, LENGTH, method="init_state")
    for t in range(2):
        _, state = mixer.apply(variables, x[:, t], state, jnp.int32(t), method="step")
    shuffled = jax.tree.map(lambda leaf: leaf[order], state)
    now = jnp.int32(2)
    y, _ = mixer.apply(variables, x[:, 2], state, now, method="step")
    y_shuffled, _ = mixer.apply(variables, x[order, 2], shuffled, now, method="step")
    np.testing.assert_allclose(y_shuffled, y[order], atol=TOLERANCE)


def check_gradients(mixer: Mixer, variables: Any) -> None:
    """Every parameter gets a finite gradient that is not zero."""
    weights = MASK[..., None] * jax.random.normal(jax.random.key(5), (BATCH, LENGTH, D))
    grads = jax.grad(lambda v: (parallel(mixer, v, inputs()) * weights).sum())(variables)
    for path, grad in jax.tree_util.tree_leaves_with_path(grads):
        assert np.isfinite(grad).all(), jax.tree_util.keystr(path)
    dead = [
        jax.tree_util.keystr(path)
        for path, grad in jax.tree_util.tree_leaves_with_path(grads)
        if not np.abs(grad).max() > 0
    ]
    assert not dead, f"no gradient reaches {dead}"


def check_cross(mixer: CrossMixer) -> None:
    """Reading is per query, padding in the memory is invisible, projecting is once."""
    x = inputs()
    memory = jax.random.normal(jax.random.key(7), (BATCH, MEMORY, D))
    mask = jnp.arange(MEMORY) < jnp.array([MEMORY, 2, 1])[:, None]

    def both(module: CrossMixer, x: jax.Array, memory: jax.Array, mask: jax.Array) -> jax.Array:
        return module.read(x, module.project(memory, mask), deterministic=True)

    variables = nn.unbox(mixer.init(jax.random.key(1), x, memory, mask, method=both))
    plain = mixer.apply(variables, x, memory, mask, method=both)
    one_by_one = [
        mixer.apply(variables, x[:, t : t + 1], memory, mask, method=both) for t in range(LENGTH)
    ]
    np.testing.assert_allclose(jnp.concatenate(one_by_one, 1), plain, atol=TOLERANCE)
    garbage = jnp.where(mask[..., None], memory, 1e3)
    got = mixer.apply(variables, x, garbage, mask, method=both)
    np.testing.assert_allclose(got, plain, atol=TOLERANCE)
    for row in range(BATCH):
        real = int(mask[row].sum())
        alone = mixer.apply(
            variables, x[row : row + 1], memory[row : row + 1, :real], mask[row : row + 1, :real],
            method=both,
        )  # fmt: skip
        np.testing.assert_allclose(alone[0], plain[row], atol=TOLERANCE)
