"""The parameters that decoding holds, against the same model with the parameters themselves."""

from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tests.contract.small_options import small_cross
from tests.models.test_options import random_params
from tests.models.test_ranks import with_mixer
from tests.models.test_transformer import SMALLER, SOURCE, SOURCE_MASK, TARGET, TARGET_MASK
from tests.quick import quick
from transformer_jax.layers.parameters import MatrixBox, TableBox
from transformer_jax.mixers.registry import CROSS_MIXERS, MIXERS
from transformer_jax.models import api
from transformer_jax.models.config import StackConfig
from transformer_jax.models.lora import Lora
from transformer_jax.ops.matrices import Table
from transformer_jax.positions.concatenated import Concatenated

DTYPES = [("float32", "float32"), ("float32", "bfloat16"), ("bfloat16", "bfloat16")]


def check(config):
    """Logits of teacher forcing and of a step are the same to the last bit."""
    params = random_params(config)
    held = jax.jit(api.for_decoding, static_argnums=0)(config, params)

    @jax.jit
    def logits(params):
        source, target = (ids % config.target_vocab_size for ids in (SOURCE, TARGET))
        arrays = source, SOURCE_MASK, api.shift_right(target), TARGET_MASK
        options = {"max_length": 5, "beam_size": 2}
        sentence, state = api.encode(config, params, source, SOURCE_MASK, **options)
        tokens = jnp.arange(4, 10).reshape(3, 2)
        step, _ = api.decode_step(config, params, tokens, jnp.int32(0), state, sentence)
        return api.apply(config, params, *arrays), step

    jax.tree.map(np.testing.assert_array_equal, logits(held), logits(params))


@pytest.mark.parametrize("name", quick(MIXERS, "full", "mamba", "mlp_mixer"))
def test_every_mixer(name):
    check(replace(with_mixer(name), matmul_dtype="bfloat16"))


@pytest.mark.parametrize("name", quick(CROSS_MIXERS, "linear"))
def test_every_cross_mixer(name):
    check(replace(SMALLER, cross=small_cross(name), matmul_dtype="bfloat16"))


MIXED = ("float32", "bfloat16")
TIED = [("all", dtypes) for dtypes in DTYPES] + [(t, MIXED) for t in ("inputs", "decoder", "none")]


@pytest.mark.parametrize("case", quick(TIED, ("all", MIXED), ("none", MIXED)))
def test_every_dtype_with_tied_and_untied_embeddings(case):
    tied, (dtype, matmul_dtype) = case
    check(replace(SMALLER, tie_embeddings=tied, dtype=dtype, matmul_dtype=matmul_dtype))


def test_words_that_are_narrower_than_the_model():
    stack = StackConfig(num_layers=1, position=Concatenated())
    check(replace(SMALLER, encoder=stack, decoder=stack, matmul_dtype="bfloat16"))


def test_an_adapter_is_added_to_the_floats():
    check(replace(SMALLER, adapter=Lora(rank=2), matmul_dtype="bfloat16"))


def dtypes(config):
    """What is held of each kind of parameter: the dtypes, as a set for each kind of box."""
    held = jax.eval_shape(
        lambda params: api.for_decoding(config, params), api.abstract_params(config)
    )
    found = {MatrixBox: set(), TableBox: set(), None: set()}
    boxes = api._abstract_boxes(config)

    def note(box, held):
        kind = type(box) if isinstance(box, MatrixBox) else None
        found[kind].add(
            (held.rows.dtype.name, held.T.dtype.name)
            if isinstance(held, Table)
            else held.dtype.name
        )

    jax.tree.map(note, boxes, held, is_leaf=api._is_box)
    return found


def test_matrices_are_held_in_the_dtype_of_the_products():
    low = replace(SMALLER, matmul_dtype="bfloat16")
    tied = replace(low, tie_embeddings="all")
    assert dtypes(tied) == {
        MatrixBox: {"bfloat16"},
        TableBox: {("float32", "bfloat16")},
        None: {"float32"},
    }
    assert dtypes(replace(low, tie_embeddings="none"))[TableBox] == {"float32"}
    assert dtypes(replace(tied, dtype="bfloat16"))[TableBox] == {"bfloat16"}
    assert set().union(*dtypes(replace(tied, matmul_dtype="float32")).values()) == {"float32"}


def test_parameters_in_this_form_stay_as_they_are():
    config = replace(SMALLER, matmul_dtype="bfloat16")
    held = api.for_decoding(config, random_params(config))
    again = api.for_decoding(config, held)
    jax.tree.map(lambda one, other: np.testing.assert_array_equal(one, other), again, held)


@pytest.mark.parametrize(("dtype", "matmul_dtype"), DTYPES)
def test_there_is_a_name_for_each_axis(dtype, matmul_dtype):
    config = replace(SMALLER, tie_embeddings="all", dtype=dtype, matmul_dtype=matmul_dtype)
    axes = api.decoding_axes(config)
    shapes = jax.eval_shape(
        lambda params: api.for_decoding(config, params), api.abstract_params(config)
    )
    for shape, names in zip(jax.tree.leaves(shapes), jax.tree.leaves(axes), strict=True):
        assert len(shape.shape) == len(names)
    if dtype != matmul_dtype:
        assert tuple(axes["target_embedding"]["table"].T) == ("embed", "vocab")
