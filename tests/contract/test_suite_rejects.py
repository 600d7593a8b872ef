"""The suites of mixers, of positions, and of norms and feed-forward networks reject broken ones."""

import jax
import jax.numpy as jnp
import pytest
from flax import linen as nn

from tests.contract.broken import changed
from transformer_jax.layers.feed_forward import Mlp
from transformer_jax.layers.norms import LayerNorm, Norm
from transformer_jax.mixers.full_attention import Full, FullAttention, FullCross, FullCrossAttention
from transformer_jax.positions.alibi import Alibi, LinearBias
from transformer_jax.positions.base import Position, PositionConfig
from transformer_jax.positions.rope import Rope, RotaryPosition
from transformer_jax.positions.sinusoidal import Sinusoidal
from transformer_jax.testing import layers, mixers, positions


def leaks(self, y, x, mask):
    return y + 1e-3 * jnp.roll(x, -1, axis=1)


def reverses_by_the_padded_length(self, y, x, mask):
    """Zeroes padding, but counts positions from the end of the batch's longest row."""
    decay = 0.5 ** jnp.arange(x.shape[1])
    return x + (decay[None, ::-1, None] * x * mask[..., None]).sum(axis=1, keepdims=True)


def grows_its_state(self, given, *_):
    y, state = given
    return y, jax.tree.map(lambda s: jnp.pad(s, [(0, 1), *[(0, 0)] * 3]), state)


def forgets_the_first(self, given, *_):
    y, state = given
    return y, jax.tree.map(lambda s: s.at[0].set(0.0), state)


def reads_its_neighbours_state(self, given, *_):
    """Wrong once beams are reordered."""
    y, state = given
    return y + 0.1 * jnp.roll(state.value.sum((0, 2, 3)), 1)[:, None], state


@pytest.mark.parametrize(
    ("check", "method", "change"),
    [
        (mixers.check_no_leak, "__call__", leaks),
        (mixers.check_step_equals_parallel, "__call__", leaks),
        (
            mixers.check_padding_and_batch_mates,
            "__call__",
            lambda self, y, x, mask: x + x.mean(axis=1, keepdims=True),
        ),
        (mixers.check_padding_and_batch_mates, "__call__", reverses_by_the_padded_length),
        (mixers.check_step_equals_parallel, "step", grows_its_state),
        (mixers.check_step_equals_parallel, "step", forgets_the_first),
        (mixers.check_beams_permute, "step", reads_its_neighbours_state),
        (
            mixers.check_gradients,
            "__call__",
            lambda self, y, x, mask: jax.lax.stop_gradient(y) + x,  # its parameters are dead
        ),
    ],
)
def test_mixers(check, method, change):
    cls = changed(FullAttention, method, change)
    mixer = cls(Full(), mixers.context(causal=True), mixers.position(causal=True))
    with pytest.raises(AssertionError):
        check(mixer, mixers.initialised(mixer))


@pytest.mark.parametrize(
    ("method", "change"),
    [
        ("project", lambda self, got, memory, mask: got._replace(mask=jnp.ones_like(mask))),
        ("read", lambda self, y, *_: y + y.mean(1, keepdims=True)),
    ],
)
def test_readers_of_the_memory(method, change):
    cls = changed(FullCrossAttention, method, change)
    with pytest.raises(AssertionError):
        mixers.check_cross(cls(FullCross(), mixers.context(causal=False)))


def mixes_positions(self, y, x):
    return y + 1e-3 * jnp.roll(y, 1, axis=-2) if y.ndim > 1 else y


def has_no_epsilon(self, y, x):
    """Its gradient at a row of zeros is not a number."""
    return x / jnp.sqrt((x * x).mean(axis=-1, keepdims=True)) * self.scale + self.bias


def computes_in_the_inputs_dtype(self, y, x):
    x = x - x.mean(axis=-1, keepdims=True)
    y = x * jax.lax.rsqrt((x * x).mean(axis=-1, keepdims=True) + self.epsilon)
    return (y * self.scale + self.bias).astype(self.dtype)


@pytest.mark.parametrize(
    ("check", "change", "words"),
    [
        (layers.check_position_wise, mixes_positions, "Not equal|mixed"),
        (
            layers.check_position_wise,
            lambda self, y, x: y * jax.lax.rsqrt((x * x).mean()),  # scales by the whole batch
            "Not equal|mixed",
        ),
        (layers.check_position_wise, lambda self, y, x: jnp.zeros_like(y), "does not depend"),
        (layers.check_gradients, lambda self, y, x: y - self.bias, "bias.* is zero"),
        (layers.check_gradients, has_no_epsilon, "padding"),
        (layers.check_dtypes, lambda self, y, x: y.astype(jnp.float32), "gave float32"),
        (layers.check_float32_inside, computes_in_the_inputs_dtype, "Not equal"),
    ],
)
def test_norms(check, change, words):
    check(layers.norm(LayerNorm()))  # which passes
    cls = changed(Norm, "__call__", change)
    with pytest.raises(AssertionError, match=words):
        check(lambda d: cls(layers.D, 1e-6, dtype=d["dtype"], param_dtype=d["param_dtype"]))


class Scale(nn.Module):
    names: tuple[str, ...] | None

    @nn.compact
    def __call__(self, x):
        init = nn.initializers.ones_init()
        init = nn.with_logical_partitioning(init, self.names) if self.names else init
        return x * self.param("scale", init, (x.shape[-1],))


@pytest.mark.parametrize(("names", "words"), [(None, "no logical axes"), (("width",), "width")])
def test_logical_axes(names, words):
    with pytest.raises(AssertionError, match=words):
        layers.check_logical_axes(lambda dtypes: Scale(names))


def test_dropout_without_effect():
    with pytest.raises(AssertionError, match="changes nothing"):
        layers.check_dropout(layers.feed_forward(Mlp(dropout_rate=0.0)))


def builds(
    module: type[Position], config: type[PositionConfig], method: str, change: object
) -> PositionConfig:
    """The options of a scheme, which build a broken module."""
    cls = changed(module, method, change)
    return type(module.__name__, (config,), {"build": lambda self, c: cls(self, c)})()


def counts_from_the_first_key(self, bias, q_at, k_at):
    """Uses indices as positions: correct in parallel, wrong in a step with one query."""
    return LinearBias.bias(self, jnp.arange(len(q_at)), jnp.arange(len(k_at)))


@pytest.mark.parametrize(
    ("check", "broken"),
    [
        (positions.check_shift_invariance, changed(Sinusoidal, "shift_invariant", True)()),
        (positions.check_shift_invariance, changed(Rope, "shift_invariant", False)()),
        (
            positions.check_shift_invariance,
            builds(RotaryPosition, Rope, "rotate", lambda self, got, q, k, *_: (got[0], k)),
        ),
        (
            positions.check_mixer_steps,
            builds(LinearBias, Alibi, "bias", counts_from_the_first_key),
        ),
        (
            positions.check_widths,
            builds(Position, PositionConfig, "embed", lambda self, x, *_: jnp.tile(x, 2)),
        ),
        (
            positions.check_widths,
            builds(LinearBias, Alibi, "bias", lambda self, x, *_: x.astype(jnp.bfloat16)),
        ),
    ],
)
def test_positions(check, broken):
    with pytest.raises(AssertionError):
        check(broken)
