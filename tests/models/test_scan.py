"""Layers as a loop: the same parameters, losses and gradients, in a program of one layer's size."""

from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tests.contract.small_options import small_mixer
from tests.devices import with_eight_devices
from tests.models.test_options import random_params
from tests.quick import quick
from tests.small import small_model
from transformer_jax.mixers.full_attention import Full
from transformer_jax.mixers.registry import MIXERS
from transformer_jax.mixers.window import Window
from transformer_jax.models import api
from transformer_jax.models.config import StackConfig
from transformer_jax.models.lora import Lora
from transformer_jax.models.transformer import Transformer
from transformer_jax.positions.none import NoPosition
from transformer_jax.positions.t5 import T5

CONFIG = small_model(
    20, both=StackConfig(num_layers=2), num_heads=4, dropout_rate=0.0, max_length=7
)
IDS = jax.random.randint(jax.random.key(1), (3, 7), 4, 20)
MASK = jnp.arange(7)[None] < jnp.array([7, 3, 5])[:, None]
BATCH = dict(source=IDS, source_mask=MASK, target=IDS[:, ::-1], target_mask=MASK)

hybrid = StackConfig(5, (Window(window=2), Full()), position=T5())
MODELS = {
    "pattern and rest": replace(CONFIG, encoder=hybrid),
    "in the decoder": replace(CONFIG, decoder=hybrid),
    "pattern once": replace(CONFIG, encoder=replace(hybrid, num_layers=3)),
    "longer pattern": replace(CONFIG, encoder=replace(hybrid, num_layers=1)),
    "post": replace(CONFIG, norm_placement="post"),
    "lora": replace(CONFIG, adapter=Lora(rank=2)),
    "remat": replace(CONFIG, remat=True),
}


def with_mixer(name):
    """A model with two layers of this mixer, in the decoder if it can be there."""
    role = "encoder" if "decoder" in MIXERS[name].refuses else "decoder"
    stack = StackConfig(2, (small_mixer(name, causal=role == "decoder"),))
    return replace(ONE_LAYER, **{role: stack})


ONE_LAYER = replace(CONFIG, encoder=StackConfig(1), decoder=StackConfig(1))
MODELS |= {name: with_mixer(name) for name, mixer in MIXERS.items() if not mixer.uses_layer}


def gradient(config, key=None):
    return jax.value_and_grad(lambda params: api.loss(config, params, BATCH, rng=key)[0])


def num_products(config, key=None):
    """In the program of the gradient."""
    lowered = jax.jit(gradient(config, key)).lower(api.abstract_params(config))
    return lowered.as_text().count("dot_general")


def assert_close(got, want):
    """Equal but for rounding, of which a gradient that should be zero consists."""
    largest = max(float(jnp.abs(leaf).max()) for leaf in jax.tree.leaves(want[1]))
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, atol=1e-5 * largest), got, want)


@pytest.mark.parametrize("name", quick(MODELS, "pattern and rest", "ssd"))
def test_loss_and_gradient_are_those_of_separate_layers(name):
    config = MODELS[name]
    scanned = replace(config, scan_layers=True)
    params = random_params(config)
    assert num_products(scanned) < num_products(config)
    assert_close(jax.jit(gradient(scanned))(params), jax.jit(gradient(config))(params))


def test_parameters_are_the_same():
    init = jax.jit(api.init, static_argnums=0)
    want = init(CONFIG, jax.random.key(0))
    got = init(replace(CONFIG, scan_layers=True), jax.random.key(0))
    assert jax.tree.structure(got) == jax.tree.structure(want)
    jax.tree.map(np.testing.assert_array_equal, got, want)


def test_the_program_does_not_grow_with_the_depth():
    def products(layers, *, scan):
        stack = StackConfig(layers)
        config = replace(CONFIG, encoder=stack, decoder=stack, remat=True, scan_layers=scan)
        return num_products(replace(config, dropout_rate=0.1), jax.random.key(3))

    assert products(5, scan=True) == products(2, scan=True)
    assert products(5, scan=False) > 2 * products(2, scan=False)


def test_every_layer_drops_other_elements():
    # Each layer adds dropout(1), and nothing else. With one key for all layers, an element would
    # be dropped by every layer or by none.
    layers = 8
    stack = StackConfig(layers, position=NoPosition())
    config = replace(ONE_LAYER, encoder=stack, dropout_rate=0.5, scan_layers=True)
    params = jax.tree.map(jnp.zeros_like, random_params(config))
    for layer in range(layers):
        block = params["encoder"][f"blocks_{layer}"]
        block["feed_forward"]["down"]["bias"] += 1.0
    params["encoder"]["last_norm"]["scale"] += 1.0

    @jax.jit
    def memory(key):
        rngs = {"dropout": key}
        return Transformer(config).apply({"params": params}, IDS, MASK, rngs=rngs, method="memory")

    first, again, other = (np.asarray(memory(jax.random.key(k))) for k in (0, 0, 1))
    np.testing.assert_array_equal(first, again)
    assert (first != other).any()
    values = [len(np.unique(vector.round(4))) for vector in first.reshape(-1, CONFIG.d_model)]
    assert min(values) > 2


def test_int8_matrices_are_stacked():
    params = api.for_decoding(CONFIG, random_params(CONFIG), "int8")
    encode = jax.jit(api.encode, static_argnums=0, static_argnames="max_length")
    want, got = (
        encode(replace(CONFIG, scan_layers=scan), params, IDS, MASK, max_length=7)[0]
        for scan in (False, True)
    )
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, atol=1e-5), got, want)


ON_A_MESH = """
import json
from dataclasses import replace

from tests.training.many_devices import MODEL, mesh_of, train
from transformer_jax.models.config import StackConfig

stacks = {side: StackConfig(2) for side in ("encoder", "decoder")}
plain = replace(MODEL, dropout_rate=0.0, **stacks)
models = {"one": plain, "all": replace(plain, scan_layers=True)}
print(json.dumps([train(mesh_of(name), 3, model=model)[1] for name, model in models.items()]))
"""


def test_training_on_a_mesh_of_all_axes_is_that_of_separate_layers_on_one_device():
    one, eight = with_eight_devices("-c", ON_A_MESH)
    np.testing.assert_allclose(eight, one, rtol=1e-5)
