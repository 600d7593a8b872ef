"""Models with int8 matrices, against the same models with the floats that they stand for."""

from dataclasses import replace
from functools import cache

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tests.contract.small_options import small_cross
from tests.models.test_options import random_params
from tests.models.test_ranks import with_mixer
from tests.models.test_transformer import SMALLER, SOURCE, SOURCE_MASK, TARGET, TARGET_MASK
from tests.quick import quick
from transformer_jax.errors import UserError
from transformer_jax.mixers.registry import CROSS_MIXERS, MIXERS
from transformer_jax.models import api
from transformer_jax.models.config import StackConfig
from transformer_jax.models.lora import Lora
from transformer_jax.models.paths import by_path
from transformer_jax.ops.matrices import Int8Matrix
from transformer_jax.positions.concatenated import Concatenated

#: The axis that products sum over, by the parameter's name.
CONTRACTED = {"kernel": 0, "table": 1}


def is_matrix(x):
    return isinstance(x, Int8Matrix)


def naive(path, w):
    """Quantised and dequantised again, in NumPy."""
    w = np.asarray(w)
    axis = CONTRACTED[path.rpartition("/")[2]]
    scale = np.abs(w).max(axis, keepdims=True) / np.float32(127)
    return (np.rint(w / scale) * scale).astype(np.float32)


@cache
def both(config, seed=0):
    """(params with int8 matrices, params with the floats that they stand for)."""
    params = random_params(config, seed)
    quantized = jax.jit(lambda params: api.for_decoding(config, params, "int8"))(params)
    leaves = jax.tree_util.tree_leaves_with_path(quantized, is_leaf=is_matrix)
    names = [
        (jax.tree_util.keystr(path, simple=True, separator="/"), is_matrix(leaf))
        for path, leaf in leaves
    ]
    floats = [
        naive(name, w) if quantised else w
        for (name, quantised), w in zip(names, jax.tree.leaves(params), strict=True)
    ]
    return quantized, jax.tree.unflatten(jax.tree.structure(params), floats)


def check(config, source=SOURCE, mask=SOURCE_MASK):
    quantized, floats = both(config)
    source, target = (ids % config.target_vocab_size for ids in (source, TARGET))
    arrays = source, mask, api.shift_right(target), TARGET_MASK
    apply = jax.jit(api.apply, static_argnums=0)
    got, want = (apply(config, params, *arrays) for params in (quantized, floats))
    real = np.asarray(TARGET_MASK)
    spread = float(want[real].std())
    np.testing.assert_allclose(got[real], want[real], rtol=1e-4, atol=1e-4 * spread)


@pytest.mark.parametrize("name", quick(MIXERS, "full", "mamba", "s4", "mlp_mixer"))
def test_every_mixer(name):
    check(with_mixer(name))


@pytest.mark.parametrize("name", quick(CROSS_MIXERS, "linear"))
def test_every_cross_mixer(name):
    check(replace(SMALLER, cross=small_cross(name)))


@pytest.mark.parametrize("tied", ["all", "inputs", "decoder", "none"])
def test_decoding_with_tied_and_untied_embeddings(tied):
    check(config := replace(SMALLER, tie_embeddings=tied, output_bias=True))
    quantized, floats = both(config)

    @jax.jit
    def step(params):
        options = {"max_length": 5, "beam_size": 2}
        sentence, state = api.encode(config, params, SOURCE, SOURCE_MASK, **options)
        tokens = jnp.arange(4, 10).reshape(3, 2)
        return api.decode_step(config, params, tokens, jnp.int32(0), state, sentence)[0]

    np.testing.assert_allclose(step(quantized), step(floats), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("name", MIXERS)
def test_every_mixer_takes_matrices_of_int8(name):
    """As the shapes say; a product that knows floats alone fails here."""
    config = with_mixer(name)
    ids = jnp.ones((2, 3), jnp.int32)
    params = jax.eval_shape(
        lambda params: api.for_decoding(config, params, "int8"), api.abstract_params(config)
    )
    jax.eval_shape(lambda params: api.apply(config, params, ids, ids > 0, ids, ids > 0), params)


def test_words_that_are_narrower_than_the_model():
    stack = StackConfig(num_layers=1, position=Concatenated())
    check(replace(SMALLER, encoder=stack, decoder=stack))


def test_bfloat16_is_as_near_as_with_floats():
    """bfloat16 holds the integers exactly, and rounds the floats that they stand for."""
    arrays = SOURCE, SOURCE_MASK, api.shift_right(TARGET), TARGET_MASK
    low = replace(SMALLER, matmul_dtype="bfloat16")
    apply = jax.jit(api.apply, static_argnums=0)
    quantized, floats = both(SMALLER)
    want = apply(SMALLER, floats, *arrays)
    errors = [np.abs(apply(low, p, *arrays) - want).mean() for p in (quantized, floats)]
    assert 0 < errors[0] < errors[1]


def test_only_linear_layers_and_embeddings():
    """What is not a matrix, and what a mixer uses in another way, stays as it is."""
    mixers = tuple(MIXERS[name]() for name in ("full", "mamba", "rwkv", "ssd", "mlp_mixer", "s4d"))
    config = replace(SMALLER, decoder=StackConfig(num_layers=len(mixers), mixers=mixers))
    params = random_params(config)
    quantized = api.for_decoding(config, params, "int8")
    before = by_path(params)
    after = {
        jax.tree_util.keystr(path, simple=True, separator="/"): leaf
        for path, leaf in jax.tree_util.tree_leaves_with_path(quantized, is_leaf=is_matrix)
    }
    changed = {path for path, leaf in after.items() if is_matrix(leaf)}
    named = {path for path in before if path.rpartition("/")[2] in CONTRACTED}
    convolutions = {path for path in named if before[path].shape[0] == 4}
    assert convolutions and changed == named - convolutions
    for path in before.keys() - changed:
        assert after[path] is before[path]


def test_axes_are_those_of_the_floats():
    config = replace(SMALLER, tie_embeddings="none")
    axes, int8 = api.logical_axes(config), api.decoding_axes(config, "int8")
    assert int8["projection"]["kernel"].values == axes["projection"]["kernel"]
    assert tuple(int8["projection"]["kernel"].scale) == (None, "vocab")
    assert tuple(int8["target_embedding"]["table"].scale) == ("vocab", None)
    params = api.abstract_params(config)
    shapes = jax.eval_shape(lambda p: api.for_decoding(config, p, "int8"), params)
    jax.tree.map(lambda x, names: (), shapes, int8)  # one structure


def test_an_adapter_is_refused():
    config = replace(SMALLER, adapter=Lora(rank=2))
    params = api.init(config, jax.random.key(0))
    with pytest.raises(UserError, match=r"int8: the model has an adapter.*merge"):
        api.for_decoding(config, params, "int8")
    api.for_decoding(*api.merge_adapter(config, params), "int8")


def test_the_loss_is_refused():
    quantized, _ = both(SMALLER)
    batch = dict(source=SOURCE, source_mask=SOURCE_MASK, target=TARGET, target_mask=TARGET_MASK)
    with pytest.raises(UserError, match="the loss needs parameters of floats"):
        api.loss(SMALLER, quantized, batch)
