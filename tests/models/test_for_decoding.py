"""The parameters that decoding holds, against the same model with the parameters themselves.

`weights=float` to the bit; `weights=int8` on a CPU to the bit what training simulates as
`int8_dynamic`.
"""

from dataclasses import replace
from functools import cache, partial
from itertools import product

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import transformer_jax as tj
from tests.contract.small_options import small_cross
from tests.models.test_options import random_params
from tests.models.test_ranks import with_mixer
from tests.models.test_transformer import BATCH, SMALLER, SOURCE, SOURCE_MASK, TARGET, TARGET_MASK
from tests.quick import quick
from transformer_jax.mixers.registry import CROSS_MIXERS, MIXERS
from transformer_jax.models import api
from transformer_jax.models.paths import by_path
from transformer_jax.ops.matrices import Int8Matrix, Table

WEIGHTS = ("float", "int8")
LOW = replace(SMALLER, matmul_dtype="bfloat16")
#: The axis that products sum over, by the parameter's name.
CONTRACTED = {"kernel": 0, "table": 1}
#: Between their products of int8, XLA rounds floats in the order of the program they are in.
OF_FLOATS = ("mamba", "s4")


@cache
def hold(config, weights):
    """(the parameters, what decoding holds of them)."""
    params = random_params(config)
    return params, jax.jit(lambda params: api.for_decoding(config, params, weights))(params)


@partial(jax.jit, static_argnums=0)
def logits(config, params):
    """Of teacher forcing at real tokens, and of a step."""
    source, target = (ids % config.target_vocab_size for ids in (SOURCE, TARGET))
    arrays = source, SOURCE_MASK, api.shift_right(target), TARGET_MASK
    options = {"max_length": 5, "beam_size": 2}
    sentence, state = api.encode(config, params, source, SOURCE_MASK, **options)
    tokens = jnp.arange(4, 10).reshape(3, 2)
    step, _ = api.decode_step(config, params, tokens, jnp.int32(0), state, sentence)
    forced = api.apply(config, params, *arrays)
    return jnp.where(TARGET_MASK[..., None], forced, 0.0), step


def check(config, weights="float", exact=True):
    params, held = hold(config, weights)
    of_params = config if weights == "float" else replace(config, quantize=tj.Int8Dynamic())
    for got, want in zip(logits(config, held), logits(of_params, params), strict=True):
        np.testing.assert_allclose(got, want, rtol=0, atol=0 if exact else 1e-6)


QUICK = [(name, "float") for name in ("full", "mamba", "mlp_mixer")]
QUICK += [(name, "int8") for name in ("full", "mamba", "s4", "mlp_mixer")]


@pytest.mark.parametrize("case", quick(product(MIXERS, WEIGHTS), *QUICK), ids="-".join)
def test_every_mixer(case):
    name, weights = case
    dtype = {"float": "bfloat16", "int8": "float32"}[weights]
    exact = weights == "float" or name not in OF_FLOATS
    check(replace(with_mixer(name), matmul_dtype=dtype), weights, exact)


@pytest.mark.parametrize(
    "case", quick(product(CROSS_MIXERS, WEIGHTS), *product(["linear"], WEIGHTS))
)
def test_every_cross_mixer(case):
    name, weights = case
    check(replace(SMALLER, cross=small_cross(name)), weights)


DTYPES = [("float32", "float32"), ("float32", "bfloat16"), ("bfloat16", "bfloat16")]
MIXED = ("float32", "bfloat16")
TIED = [("all", dtypes) for dtypes in DTYPES] + [(t, MIXED) for t in ("inputs", "decoder", "none")]


@pytest.mark.parametrize("case", quick(TIED, ("all", MIXED), ("none", MIXED)))
def test_every_dtype_with_tied_and_untied_embeddings(case):
    tied, (dtype, matmul_dtype) = case
    check(replace(SMALLER, tie_embeddings=tied, dtype=dtype, matmul_dtype=matmul_dtype))


@pytest.mark.parametrize("tied", ["all", "inputs", "decoder", "none"])
def test_int8_with_tied_and_untied_embeddings(tied):
    check(replace(SMALLER, tie_embeddings=tied, output_bias=True), "int8")


@pytest.mark.parametrize("weights", WEIGHTS)
def test_words_that_are_narrower_than_the_model(weights):
    stack = tj.StackConfig(num_layers=1, position=tj.Concatenated())
    check(replace(SMALLER, encoder=stack, decoder=stack), weights)


def test_an_adapter_is_added_to_the_floats_and_refused_with_int8():
    adapted = replace(LOW, adapter=tj.Lora(rank=2))
    check(adapted)
    params = api.init(adapted, jax.random.key(0))
    with pytest.raises(tj.UserError, match=r"int8: the model has an adapter.*merge"):
        api.for_decoding(adapted, params, "int8")
    api.for_decoding(*api.merge_adapter(adapted, params), "int8")


@pytest.mark.parametrize("name", MIXERS)
def test_every_mixer_takes_matrices_of_int8(name):
    """As the shapes say; a product that knows floats alone fails here."""
    config = with_mixer(name)
    ids = jnp.ones((2, 3), jnp.int32)
    params = jax.eval_shape(
        lambda params: api.for_decoding(config, params, "int8"), api.abstract_params(config)
    )
    jax.eval_shape(lambda params: api.apply(config, params, ids, ids > 0, ids, ids > 0), params)


def is_matrix(x):
    return isinstance(x, Int8Matrix)


def test_of_int8_are_only_linear_layers_and_embeddings():
    """What is not a matrix, and what a mixer uses in another way, stays as it is."""
    mixers = tuple(MIXERS[name]() for name in ("full", "mamba", "rwkv", "ssd", "mlp_mixer", "s4d"))
    config = replace(SMALLER, decoder=tj.StackConfig(num_layers=len(mixers), mixers=mixers))
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


def held_dtypes(**change):
    """Of a matrix, of the table's rows and of the table as a matrix, of a norm."""
    config = replace(LOW, tie_embeddings="all", **change)
    given = api.abstract_params(config)
    held = jax.eval_shape(lambda params: api.for_decoding(config, params), given)
    block, table = held["encoder"]["blocks_0"], held["target_embedding"]["table"]
    tables = (table.rows, table.T) if isinstance(table, Table) else (table, table)
    kernel, scale = block["feed_forward"]["up"]["kernel"], block["mixer_residual"]["norm"]["scale"]
    return [x.dtype.name for x in (kernel, *tables, scale)]


def test_matrices_are_held_in_the_dtype_of_the_products():
    assert held_dtypes() == ["bfloat16", "float32", "bfloat16", "float32"]
    assert held_dtypes(dtype="bfloat16") == ["bfloat16", "bfloat16", "bfloat16", "float32"]
    assert held_dtypes(matmul_dtype="float32") == ["float32"] * 4


def test_axes_are_those_of_the_floats():
    config = replace(SMALLER, tie_embeddings="none")
    axes, int8 = api.logical_axes(config), api.decoding_axes(config, "int8")
    assert tuple(int8["projection"]["kernel"].values) == ("vocab", "embed")
    assert tuple(axes["projection"]["kernel"]) == ("embed", "vocab")
    assert tuple(int8["projection"]["kernel"].scale) == ("vocab", None)
    assert tuple(int8["target_embedding"]["table"].scale) == ("vocab", None)
    low = api.decoding_axes(replace(LOW, tie_embeddings="all"))
    assert tuple(low["target_embedding"]["table"].T) == ("embed", "vocab")


def test_the_loss_of_int8_is_refused():
    _, held = hold(SMALLER, "int8")
    with pytest.raises(tj.UserError, match="the loss needs parameters of floats"):
        api.loss(SMALLER, held, BATCH)
