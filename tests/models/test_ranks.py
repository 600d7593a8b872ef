"""An array meets one of more axes only where the code says so, by None or `broadcast_to_rank`.

Tracing finds every place, so nothing is compiled. Each mixer is traced beside full attention. The
quick suite asks it of the parts alone, in tests/contract, and of few models.
"""

import dataclasses

import jax
import jax.numpy as jnp
import pytest

from tests.contract.small_options import small_cross, small_mixer
from tests.quick import quick
from tests.small import small_model
from transformer_jax.layers.registry import FEED_FORWARDS, NORMS
from transformer_jax.mixers.full_attention import Full
from transformer_jax.mixers.registry import CROSS_MIXERS, MIXERS
from transformer_jax.models import api
from transformer_jax.models.config import StackConfig
from transformer_jax.positions.registry import POSITIONS

SMALL = small_model(11, d_model=8, d_ff=8, max_length=8, tie_embeddings="none", output_bias=True)
IDS = jnp.ones((2, 7), jnp.int32)
BATCH = {"source": IDS, "source_mask": IDS > 0, "target": IDS, "target_mask": IDS > 0}


def with_mixer(name):
    stacks = {
        role: StackConfig(num_layers=1, mixers=(small_mixer(name, causal=role == "decoder"),))
        for role in ("encoder", "decoder")
        if role not in MIXERS[name].refuses
    }
    return dataclasses.replace(SMALL, **stacks)


def with_position(name):
    stack = StackConfig(num_layers=1, position=POSITIONS[name]())
    return dataclasses.replace(SMALL, encoder=stack, decoder=stack)


def beside_full(name):
    """Two layers of a kind each, in each stack that takes the mixer."""
    config = with_mixer(name)
    stacks = {
        role: dataclasses.replace(
            stack := getattr(config, role), num_layers=2, mixers=(*stack.mixers, Full())
        )
        for role in ("encoder", "decoder")
        if role not in MIXERS[name].refuses
    }
    return dataclasses.replace(config, **stacks)


CONFIGS = {
    **{f"mixer {name}": beside_full(name) for name in MIXERS},
    **{f"position {name}": with_position(name) for name in POSITIONS},
    **{f"cross {n}": dataclasses.replace(SMALL, cross=small_cross(n)) for n in CROSS_MIXERS},
    **{f"norm {n}": dataclasses.replace(SMALL, norm=cls()) for n, cls in NORMS.items()},
    **{f"{n}": dataclasses.replace(SMALL, feed_forward=cls()) for n, cls in FEED_FORWARDS.items()},
    "bfloat16": dataclasses.replace(SMALL, dtype="bfloat16", matmul_dtype="bfloat16"),
}


@pytest.mark.parametrize("name", quick(CONFIGS, "mixer full", "mixer mamba", "bfloat16"))
def test_ranks_are_not_promoted(name):
    config = CONFIGS[name]

    def loss(params):
        return api.loss(config, params, BATCH, label_smoothing=0.1, rng=jax.random.key(1))[0]

    def decode(params):
        sentence, state = api.encode(config, params, IDS, IDS > 0, max_length=5, beam_size=3)
        tokens = jnp.ones((2, 3), jnp.int32)
        return api.decode_step(config, params, tokens, jnp.int32(0), state, sentence)

    with jax.numpy_rank_promotion("raise"):
        params = jax.eval_shape(lambda: api.init(config, jax.random.key(0)))
        jax.eval_shape(jax.grad(loss), params)
        jax.eval_shape(decode, params)
