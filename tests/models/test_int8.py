"""`decode.weights=int8` on a CPU: to the bit what training simulates as `int8_dynamic`."""

from dataclasses import replace
from functools import cache, partial

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
from transformer_jax.models.quantization import Int8Dynamic
from transformer_jax.ops.matrices import Int8Matrix
from transformer_jax.positions.concatenated import Concatenated

#: The axis that products sum over, by the parameter's name.
CONTRACTED = {"kernel": 0, "table": 1}


def is_matrix(x):
    return isinstance(x, Int8Matrix)


@cache
def both(config, seed=0):
    """(params with int8 matrices, the config that simulates them, params of floats)."""
    params = random_params(config, seed)
    held = jax.jit(lambda params: api.for_decoding(config, params, "int8"))(params)
    return held, replace(config, quantize=Int8Dynamic()), params


def check(config, exact=True):
    held, simulated, params = both(config)
    source, target = (ids % config.target_vocab_size for ids in (SOURCE, TARGET))
    arrays = source, SOURCE_MASK, api.shift_right(target), TARGET_MASK
    apply = jax.jit(api.apply, static_argnums=0)
    got, want = apply(config, held, *arrays), apply(simulated, params, *arrays)
    real = np.asarray(TARGET_MASK)
    if exact:
        np.testing.assert_array_equal(got[real], want[real])
    else:
        np.testing.assert_allclose(got[real], want[real], atol=1e-6)


#: Between their products, XLA rounds floats in the order of the program that they are in.
OF_FLOATS = ("mamba", "s4")


@pytest.mark.parametrize("name", quick(MIXERS, "full", "mamba", "s4", "mlp_mixer"))
def test_every_mixer(name):
    check(with_mixer(name), exact=name not in OF_FLOATS)


@pytest.mark.parametrize("name", quick(CROSS_MIXERS, "linear"))
def test_every_cross_mixer(name):
    check(replace(SMALLER, cross=small_cross(name)))


@pytest.mark.parametrize("tied", ["all", "inputs", "decoder", "none"])
def test_decoding_with_tied_and_untied_embeddings(tied):
    check(config := replace(SMALLER, tie_embeddings=tied, output_bias=True))
    held, simulated, params = both(config)

    @partial(jax.jit, static_argnums=0)
    def step(config, params):
        options = {"max_length": 5, "beam_size": 2}
        sentence, state = api.encode(config, params, SOURCE, SOURCE_MASK, **options)
        tokens = jnp.arange(4, 10).reshape(3, 2)
        return api.decode_step(config, params, tokens, jnp.int32(0), state, sentence)[0]

    np.testing.assert_array_equal(step(config, held), step(simulated, params))


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
    assert tuple(int8["projection"]["kernel"].values) == ("vocab", "embed")
    assert tuple(axes["projection"]["kernel"]) == ("embed", "vocab")
    assert tuple(int8["projection"]["kernel"].scale) == ("vocab", None)
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
    held, *_ = both(SMALLER)
    batch = dict(source=SOURCE, source_mask=SOURCE_MASK, target=TARGET, target_mask=TARGET_MASK)
    with pytest.raises(UserError, match="the loss needs parameters of floats"):
        api.loss(SMALLER, held, batch)
