"""`decode.weights`: what a translator does with it, and what the compiled search holds."""

import re
from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import transformer_jax as tj
from tests.translation.conftest import assert_same, model, translator
from transformer_jax.models import api
from transformer_jax.parallel.mesh import decoding_mesh
from transformer_jax.translation import search
from transformer_jax.translation.model import Model
from transformer_jax.translation.model_calls import Decoding, Sources, decode_batch
from transformer_jax.viewing.attention import attention_maps, effective_attention
from transformer_jax.vocabulary import EOS_ID

SOURCES = ["abc", "a", "", "bcbcbc", "cab", "ccab"]


@pytest.fixture(scope="module")
def int8(members):
    return translator(members[0][0], members[1][0], weights="int8")


@pytest.mark.parametrize("is_ensemble", [False, True])
def test_translates_and_scores_as_simulated_int8(members, is_ensemble):
    configs, params = members
    simulated = tuple(replace(config, quantize=tj.Int8Dynamic()) for config in configs)
    if not is_ensemble:
        configs, simulated, params = configs[0], simulated[0], params[0]
    int8 = translator(configs, params, weights="int8")
    floats, plain = translator(simulated, params), translator(configs, params)
    found, expected = (each.decode(SOURCES).translations for each in (int8, floats))
    assert_same(found, expected, atol=1e-4)
    pairs = SOURCES, SOURCES[::-1]
    np.testing.assert_allclose(int8.score(*pairs), floats.score(*pairs), atol=1e-4)
    assert np.abs(int8.score(*pairs) - plain.score(*pairs)).max() > 1e-3


def test_a_batch_changes_no_bit_of_a_translation(int8, monkeypatch):
    """Few rows are the fastest: at most 16 hypotheses."""
    sizes, pad = set(), search.pad

    def noted(rows, num_rows, length):
        sizes.add(num_rows)
        return pad(rows, num_rows, length)

    monkeypatch.setattr(search, "pad", noted)
    together = int8.decode(SOURCES).translations
    assert sizes == {16 // int8.decode_config.method.num_hypotheses}
    assert together == [int8.decode([s], batch_size=1).translations[0] for s in SOURCES]
    int8.decode(SOURCES, method=tj.Beam(beam_size=20))
    assert min(sizes) == 1


def test_on_a_mesh_and_with_other_params(members, int8):
    config, params = members[0][0], members[1][0]
    mesh = decoding_mesh(tj.MeshConfig(), jax.local_devices()[:1])
    there = tj.Translator(config, None, int8.tokenizers, int8.decode_config, mesh=mesh)
    there = there.with_params(params)
    assert there.translate(SOURCES) == int8.translate(SOURCES)
    assert jax.tree.all(jax.tree.map(lambda leaf: leaf.sharding.mesh == mesh, there.params))
    again = int8.with_params(int8.params)  # they are of int8 already
    jax.tree.map(np.testing.assert_array_equal, again.params, int8.params)


@pytest.mark.parametrize("maps", [attention_maps, effective_attention])
def test_attention_is_seen_in_int8(members, int8, maps):
    ids = [4, 5, 6, EOS_ID], [5, EOS_ID]
    got = maps(int8.model.members[0], int8.params, *ids)
    want = maps(members[0][0], members[1][0], *ids)
    assert got.keys() == want.keys()
    for name in got:
        np.testing.assert_allclose(got[name], want[name], atol=0.1)


def test_a_call_cannot_choose_the_weights(members, int8):
    floats = translator(members[0][0], members[1][0])
    for one, other in ((int8, "float"), (floats, "int8")):
        with pytest.raises(tj.UserError, match=f"weights={other}: this translator holds"):
            one.translate(["abc"], weights=other)
    assert int8.translate(["abc"], weights="int8") == int8.translate(["abc"])


def large_matrices(matmul_dtype, method, weights):
    """(what makes it, dtype) of the arrays of a compiled search that are like a large matrix."""
    sizes = {"source_vocab_size": 1999, "target_vocab_size": 1999, "d_model": 32, "d_ff": 2003}
    config = model(**sizes, matmul_dtype=matmul_dtype)
    ids = jax.ShapeDtypeStruct((3, 7), jnp.int32)
    numbers = jax.ShapeDtypeStruct((3,), jnp.int32)
    mask = jax.ShapeDtypeStruct((3, 7), jnp.bool_)
    params = api.abstract_params(config)
    if weights:
        params = jax.eval_shape(lambda p: api.for_decoding(config, p, weights), params)
    sources = Sources(ids, mask, numbers, numbers)
    lowered = decode_batch.lower(
        params, sources, model=Model((config,)), decoding=Decoding(method, 9)
    )
    shapes = "|".join(f"{n},32|32,{n}|{n},2,16|2,16,{n}" for n in (1999, 2003))
    made = re.findall(rf"= (\w+)\[(?:{shapes})\]\S* ([\w-]+)\(", lowered.compile().as_text())
    # An element of a tuple is an array that is there already.
    return {(maker, dtype) for dtype, maker in made if maker != "get-tuple-element"}


@pytest.mark.parametrize("matmul_dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("method", [tj.Greedy(), tj.Beam(3)], ids=["greedy", "beam"])
def test_a_compiled_search_holds_no_float_copy_of_a_large_matrix(matmul_dtype, method):
    """Neither in front of its loop nor inside."""
    assert "f32" in {dtype for _, dtype in large_matrices(matmul_dtype, method, None)}
    assert {dtype for _, dtype in large_matrices(matmul_dtype, method, "int8")} == {"s8"}


@pytest.mark.parametrize("method", [tj.Greedy(), tj.Beam(3)], ids=["greedy", "beam"])
def test_a_compiled_search_rounds_no_matrix(method):
    assert ("convert", "bf16") in large_matrices("bfloat16", method, None)
    found = large_matrices("bfloat16", method, "float")
    assert found == {("parameter", "bf16"), ("parameter", "f32")}  # f32: tables of embeddings
