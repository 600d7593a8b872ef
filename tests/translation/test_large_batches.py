"""A search goes on with few rows of a large batch: what models know of a sentence goes with it."""

from dataclasses import replace
from itertools import product

import jax
import jax.numpy as jnp
import pytest

from tests.contract.small_options import small_cross
from tests.models.test_ranks import with_mixer
from tests.models.test_transformer import SMALLER
from tests.quick import quick
from tests.translation.conftest import assert_same, translator
from transformer_jax.decoding.beam import Beam
from transformer_jax.decoding.greedy import Greedy
from transformer_jax.decoding.sample import Sample
from transformer_jax.mixers.registry import CROSS_MIXERS, MIXERS
from transformer_jax.models import api
from transformer_jax.ops.key_value_cache import map_state

#: Short sentences, and two that are far longer.
SOURCES = [*("ab", "a", "c", "bc", "ca") * 4, "abcabcabcab", "cbacbacbaca"]

METHODS = {"greedy": Greedy(), "beam": Beam(3), "sample": Sample(num_samples=2)}


#: The number of the member, or None for all of them, and what its search is asked for.
ASKED = {
    "attention": (0, {}),
    "no repetition": (0, {"no_repeat_ngram": 4}),
    "prefix": (0, {"target_prefix": SOURCES}),
    "mamba": (1, {"target_prefix": SOURCES}),
    "ensemble": (None, {"target_prefix": SOURCES}),
}
CASES = list(product(ASKED, METHODS))
QUICK = [("attention", "greedy"), ("no repetition", "beam"), ("prefix", "sample")]


@pytest.mark.parametrize("case", quick(CASES, *QUICK, ("mamba", "beam"), ("ensemble", "beam")))
def test_as_in_small_batches(members, case):
    configs, params = members
    (number, options), method = ASKED[case[0]], METHODS[case[1]]
    if number is not None:
        configs, params = configs[number], params[number]
    decode = {"method": method, "max_length_factor": 2.0, "max_length_offset": 1}
    large, small = (
        translator(configs, params, batch_size=size, **decode)
        .decode(SOURCES, **options)
        .translations
        for size in (len(SOURCES), 1)
    )
    lengths = sorted(len(sentence[0].tokens) for sentence in small)
    assert lengths[-1] > lengths[-len(lengths) // 4], "no step is for few sentences"
    assert_same(large, small, atol=1e-4)


CONFIGS = {name: with_mixer(name) for name in MIXERS}
CONFIGS |= {f"cross {n}": replace(SMALLER, cross=small_cross(n)) for n in CROSS_MIXERS}


@pytest.mark.parametrize("config", CONFIGS.values(), ids=CONFIGS)
def test_every_mixer_says_what_belongs_to_a_sentence(config):
    """The memory leads with sentences, and a state with sentences and hypotheses."""
    batch, beams = 5, 3
    ids = jax.ShapeDtypeStruct((batch, 4), jnp.int32)
    mask = jax.ShapeDtypeStruct((batch, 4), jnp.bool_)
    sentence, state = jax.eval_shape(
        lambda *arrays: api.encode(config, *arrays, max_length=6, beam_size=beams),
        api.abstract_params(config),
        ids,
        mask,
    )
    assert {leaf.shape[0] for leaf in jax.tree.leaves(sentence)} == {batch}
    shapes = []
    map_state(
        lambda leaf: shapes.append(leaf.shape[:2]),
        state,
        lambda cache: shapes.append((cache.key.shape[1] // beams, beams)),
    )
    assert set(shapes) <= {(batch, beams)}
