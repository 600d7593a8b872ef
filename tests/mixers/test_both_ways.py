"""The wrapper that gives a causal mixer a second direction in the encoder."""

from dataclasses import dataclass

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import linen as nn

from transformer_jax.mixers.base import Mixer, MixerContext
from transformer_jax.mixers.both_ways import BothWaysConfig
from transformer_jax.positions.none import NoPosition

D, LENGTHS = 2, (5, 3, 1)
MASK = jnp.arange(5)[None] < jnp.array(LENGTHS)[:, None]
X = jax.random.normal(jax.random.key(0), (3, 5, D))


@dataclass(frozen=True)
class Sum(BothWaysConfig):
    """No options of its own."""

    def build_causal(self, context, position):
        return SumSoFar(self, context, position)


class SumSoFar(Mixer):
    """y_t = scale * (x_0 + ... + x_t): simple to compute by hand."""

    def setup(self):
        assert self.context.causal, "it only reads forwards"
        self.scale = self.param("scale", nn.initializers.uniform(), (D,))

    def __call__(self, x, mask):
        return self.scale * jnp.cumsum(x, axis=1)


def run(**options):
    context = MixerContext(d_model=D, num_heads=1, head_dim=D, max_length=5, causal=False)
    mixer = Sum(**options).build(context, NoPosition().build(context))
    variables = nn.unbox(mixer.init(jax.random.key(1), X, MASK))
    return mixer.apply(variables, X, MASK), variables["params"]


def by_hand(p, row, n):
    """[n, 2, D]: the output of each direction at one row's n real tokens."""
    back = p.get("backwards", p["forwards"])["scale"]
    pairs = [
        (p["forwards"]["scale"] * X[row, : t + 1].sum(0), back * X[row, t:n].sum(0))
        for t in range(n)
    ]
    return np.asarray(pairs)


@pytest.mark.parametrize("share", [False, True])
def test_the_backward_mixer_starts_at_the_last_real_token(share):
    y, params = run(share_weights=share)
    assert sorted(params) == (["forwards"] if share else ["backwards", "forwards"])
    for row, n in enumerate(LENGTHS):
        np.testing.assert_allclose(y[row, :n], by_hand(params, row, n).sum(1), rtol=1e-5)


def test_concat_projects_both_directions():
    y, params = run(combine="concat")
    for row, n in enumerate(LENGTHS):
        pairs = by_hand(params, row, n).reshape(n, 2 * D)
        want = pairs @ params["join"]["kernel"] + params["join"]["bias"]
        np.testing.assert_allclose(y[row, :n], want, rtol=1e-5)
