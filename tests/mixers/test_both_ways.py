"""The wrapper that gives a causal mixer a second direction in the encoder."""

from dataclasses import dataclass

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import linen as nn

from tests.small import small_model
from transformer_jax.errors import UserError
from transformer_jax.mixers.base import Mixer, MixerContext
from transformer_jax.mixers.both_ways import BothWaysConfig
from transformer_jax.mixers.mamba import Mamba
from transformer_jax.models import api
from transformer_jax.models.config import StackConfig
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

    def init_state(self, batch, max_length):
        return jnp.zeros((batch, D))

    def step(self, x, state, position):
        return self.scale * (state + x), state + x


def context(*, causal=False):
    return MixerContext(d_model=D, num_heads=1, head_dim=D, max_length=5, causal=causal)


def build(*, causal=False, **options):
    position = NoPosition().build(context(causal=causal))
    return Sum(**options).build(context(causal=causal), position)


def run(mixer, x=X, mask=MASK):
    variables = nn.unbox(mixer.init(jax.random.key(1), x, mask))
    return mixer.apply(variables, x, mask), variables["params"]


def by_hand(p, row, x):
    """[n, 2, D]: the output of each direction at one row's real tokens."""
    n = LENGTHS[row]
    back = p.get("backwards", p["forwards"])["scale"]
    pairs = [
        (p["forwards"]["scale"] * x[row, : t + 1].sum(0), back * x[row, t:n].sum(0))
        for t in range(n)
    ]
    return np.asarray(pairs)


@pytest.mark.parametrize("share", [False, True])
def test_the_backward_mixer_starts_at_the_last_real_token(share):
    y, params = run(build(share_weights=share))
    assert sorted(params) == (["forwards"] if share else ["backwards", "forwards"])
    for row, n in enumerate(LENGTHS):
        np.testing.assert_allclose(y[row, :n], by_hand(params, row, X).sum(1), rtol=1e-5)


def test_concat_projects_both_directions():
    y, params = run(build(combine="concat"))
    for row, n in enumerate(LENGTHS):
        pairs = by_hand(params, row, X).reshape(n, 2 * D)
        want = pairs @ params["join"]["kernel"] + params["join"]["bias"]
        np.testing.assert_allclose(y[row, :n], want, rtol=1e-5)


def test_the_decoder_holds_the_causal_mixer_itself():
    mixer = build(causal=True)
    y, params = run(mixer)
    assert isinstance(mixer, SumSoFar) and list(params) == ["scale"]
    np.testing.assert_allclose(y, params["scale"] * jnp.cumsum(X, 1), rtol=1e-5)


@pytest.mark.parametrize("options", [{"combine": "concat"}, {"share_weights": True}])
def test_options_of_two_directions_are_refused_in_the_decoder(options):
    Sum(**options).check(context(), frozenset())
    with pytest.raises(UserError, match="no effect here: a decoder reads forwards only; set it in"):
        Sum(**options).check(context(causal=True), frozenset())


def test_one_word_of_config_gives_each_role_its_directions():
    config = small_model(
        9,
        both=StackConfig(num_layers=1, mixers=(Mamba(),), position=NoPosition()),
        d_model=8,
        d_ff=8,
        max_length=5,
    )
    paths = [
        jax.tree_util.keystr(path)
        for path, _ in jax.tree_util.tree_leaves_with_path(api.abstract_params(config))
    ]
    backwards = [path for path in paths if "backwards" in path]
    assert backwards and all("encoder" in path for path in backwards)
    assert not any("decoder" in path and "forwards" in path for path in paths)
