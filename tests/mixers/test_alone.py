"""A mixer by itself is the mixer in our Transformer; docs/one_mixer.md has it in other models."""

from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tests.contract.small_options import small_cross, small_mixer
from tests.small import small_model
from transformer_jax.errors import UserError
from transformer_jax.mixers.alone import MixerLayer
from transformer_jax.mixers.full_attention import Full, FullAttention, FullCross
from transformer_jax.mixers.registry import CROSS_MIXERS, MIXERS
from transformer_jax.mixers.ssd import SSD
from transformer_jax.models import api
from transformer_jax.models.config import StackConfig
from transformer_jax.models.transformer import Transformer
from transformer_jax.positions.alibi import Alibi
from transformer_jax.positions.none import NoPosition
from transformer_jax.positions.rope import Rope
from transformer_jax.positions.sinusoidal import Sinusoidal
from transformer_jax.positions.t5 import T5

D, LENGTH = 16, 8
X, MASK = jnp.ones((2, LENGTH, D)), jnp.ones((2, LENGTH), bool)
ROLES = [
    (name, causal)
    for name, cls in MIXERS.items()
    for causal in (False, True)
    if not cls.refuses.get("decoder" if causal else "encoder")
]
POSITIONS = [("full", Rope()), ("full", T5()), ("full", Alibi()), ("linear", Rope())]


def of_model(mixer: Any, causal: bool, position: Any) -> tuple[Any, Any, Any]:
    """The mixer in a model: a function of all parameters, and those, and the mixer's own."""
    own = StackConfig(num_layers=1, mixers=(mixer,), position=position)
    stack = "decoder" if causal else "encoder"
    config = small_model(20, d_model=D, num_heads=4, max_length=LENGTH, **{stack: own})
    params = api.abstract_params(config)

    def call(params: Any, method: str, *args: Any) -> Any:
        def run(model: Transformer) -> Any:
            return getattr(getattr(model, stack).blocks[0].mixer, method)(*args)

        return Transformer(config).apply({"params": params}, method=run)

    found = params[stack]["blocks_0"].get("mixer", {})
    return call, params, found | {k: v for k, v in params[stack].items() if k == "position"}


def text(function: Any, *args: Any) -> str:
    return jax.jit(lambda *args: function(*args)).lower(*args).as_text()


@pytest.mark.parametrize(
    ("name", "causal", "position"),
    [(*role, NoPosition()) for role in ROLES] + [(name, True, p) for name, p in POSITIONS],
)
def test_its_programs_are_those_of_the_mixer_in_a_model(name, causal, position):
    mixer = small_mixer(name, causal=causal)
    layer = MixerLayer(mixer, D, 4, causal, position, LENGTH)
    call, params, own = of_model(mixer, causal, position)
    assert own == jax.eval_shape(layer.init, jax.random.key(1))
    assert jax.tree.structure(layer.logical_axes()) == jax.tree.structure(own)
    whole = text(lambda p, x, m: call(p, "__call__", x, m), params, X, MASK)
    assert text(layer.apply, own, X, MASK) == whole
    if causal:
        state = jax.eval_shape(lambda p: layer.init_state(p, 2, LENGTH), own)
        step = text(lambda p, *args: call(p, "step", *args), params, X[:, 0], state, jnp.int32(0))
        assert text(layer.step, own, X[:, 0], state, jnp.int32(0)) == step


@pytest.mark.parametrize("name", CROSS_MIXERS)
def test_a_cross_mixer_is_that_of_a_model(name):
    cross = small_cross(name)
    layer = MixerLayer(cross, D, 4, max_length=LENGTH)
    config = small_model(20, d_model=D, num_heads=4, max_length=LENGTH, cross=cross)
    params = api.abstract_params(config)
    own = params["decoder"]["blocks_0"]["cross"]

    def in_model(params: Any, x: jax.Array, memory: jax.Array, mask: jax.Array) -> Any:
        def run(model: Transformer) -> Any:
            mixer = model.decoder.blocks[0].cross
            return mixer.read(x, mixer.project(memory, mask))

        return Transformer(config).apply({"params": params}, method=run)

    def alone(params: Any, x: jax.Array, memory: jax.Array, mask: jax.Array) -> Any:
        return layer.read(params, x, layer.project(params, memory, mask))

    assert text(alone, own, X[:, :3], X, MASK) == text(in_model, params, X[:, :3], X, MASK)
    assert own == jax.eval_shape(layer.init, jax.random.key(0))


class ScaledMixer(FullAttention):
    scale: float = 1.0

    def __call__(self, x_BLD: jax.Array, mask_BL: jax.Array) -> jax.Array:
        return self.scale * super().__call__(x_BLD, mask_BL)


@dataclass(frozen=True)
class Scaled(Full):
    def build(self, context: Any, position: Any) -> Any:
        return ScaledMixer(self, context, position, scale=5.0)


def test_the_module_has_all_fields_of_a_mixer_of_ones_own():
    layer = MixerLayer(Scaled(), D, 2)
    params, x = layer.init(jax.random.key(3)), jax.random.normal(jax.random.key(4), X.shape)
    y = layer.apply(params, x)
    np.testing.assert_array_equal(layer.module().apply({"params": params}, x, MASK), y)
    np.testing.assert_allclose(y, 5 * MixerLayer(Full(), D, 2).apply(params, x), atol=1e-5)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((Full(), 16, 3), "num_heads=3 does not divide d_model=16"),
        ((MIXERS["linformer"](), 16, 4, True), "Linformer with causal=True: its length proj"),
        ((SSD(), 16, 4, True, Rope()), "SSD does not apply rotate of Rope.*: take another"),
        ((Full(), 16, 4, True, Sinusoidal()), "Full does not apply embed .* call its `embed`"),
        ((SSD, 16), "mixer is <class .*: give the options of one, such as SSD()"),
        ((Full(), 16, 0), "num_heads=0 does not divide d_model=16"),
        ((FullCross(), 16, 4, True), "FullCross reads a memory: it takes no `causal` and no"),
    ],
)
def test_what_cannot_work_is_one_line(arguments, message):
    with pytest.raises(UserError, match=message):
        MixerLayer(*arguments)


def test_arguments_that_cannot_be_are_one_line():
    layer = MixerLayer(Full(), D, 2)
    params = jax.eval_shape(layer.init, jax.random.key(0))
    wide = jax.eval_shape(MixerLayer(Full(), 2 * D, 2).init, jax.random.key(0))
    for use, message in (
        (lambda: layer.init(0), r"key is 0: give jax.random.key\(0\)"),
        (lambda: layer.apply(params, X[..., :3]), r"x has .*: expected \[rows, length, 16\]"),
        (lambda: layer.apply(params, X, MASK * 1.0), "mask is float32"),
        (lambda: jax.eval_shape(layer.apply, wide, X), "params are not of this layer"),
        (lambda: layer.init_state(params, 2, 8), "Full with causal=False sees what follows"),
        (lambda: layer.read(params, X, X), "Full has no such function: use apply"),
        (lambda: MixerLayer(FullCross(), D, 2).apply({}, X), "FullCross has no such function"),
    ):
        with pytest.raises(UserError, match=message):
            use()
