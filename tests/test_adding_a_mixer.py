"""Follows docs/adding_a_mixer.md: its mixer joins the registry, keeps the contract, decodes."""

import re
import sys
import types
from dataclasses import field, make_dataclass, replace
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT / "tests" / "contract"))

import suite  # noqa: E402

from transformer_jax.errors import UserError  # noqa: E402
from transformer_jax.mixers.registry import MIXERS, MixerOptions  # noqa: E402
from transformer_jax.models import api  # noqa: E402
from transformer_jax.models.config import (  # noqa: E402
    ModelConfig,
    StackConfig,
    check_model_config,
)

PAGE = (ROOT / "docs" / "adding_a_mixer.md").read_text(encoding="utf-8")
FILES = dict(re.findall(r"^```python title=(\S+)\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL))


@pytest.fixture
def names(monkeypatch):
    """What the page's files define, with its line of the registry carried out."""
    module = types.ModuleType("moving_average")
    monkeypatch.setitem(sys.modules, "moving_average", module)
    module.MIXERS = dict(MIXERS)
    for title, code in FILES.items():
        exec(compile(code, title, "exec"), vars(module))
        if title == "line":
            monkeypatch.setitem(MIXERS, "moving_average", module.MIXERS["moving_average"])
    return vars(module)


def config(cls, **options):
    """A model whose decoder alternates the new mixer with full attention."""
    joined = make_dataclass(
        "Options",
        [("moving_average", cls.Options, field(default_factory=lambda: cls.Options(**options)))],
        bases=(MixerOptions,),
        frozen=True,
    )
    pattern = StackConfig(
        num_layers=3, mixers=("moving_average", "full"), position="none", options=joined()
    )
    return ModelConfig(
        source_vocab_size=20,
        target_vocab_size=20,
        d_model=16,
        d_ff=16,
        num_heads=2,
        encoder=StackConfig(num_layers=1),
        decoder=pattern,
        max_length=8,
    )


@pytest.mark.parametrize(
    "check",
    [
        suite.check_step_equals_parallel,
        suite.check_no_leak,
        suite.check_padding_and_batch_mates,
        suite.check_beams_permute,
        suite.check_gradients,
    ],
)
def test_the_mixer_of_the_page_keeps_the_contract(names, check):
    cls = names["MovingAverage"]
    mixer = cls(suite.context(causal=True), cls.Options(), suite.position(causal=True))
    check(mixer, suite.initialised(mixer))


def test_the_test_of_the_page(names):
    names["test_equals_the_loop"]()


def test_the_test_of_the_page_can_fail(names, monkeypatch):
    step = names["MovingAverage"].step
    monkeypatch.setattr(names["MovingAverage"], "step", lambda *a: (step(*a)[0], step(*a)[1] * 0.9))
    with pytest.raises(AssertionError):
        names["test_equals_the_loop"]()


def test_a_hybrid_with_it_decodes_as_it_trains(names):
    model = config(names["MovingAverage"])
    params = api.init(model, jax.random.key(0))
    assert "decay" in params["decoder"]["blocks_2"]["mixer"]
    ids, mask = jnp.array([[5, 6, 7, 2]]), jnp.ones((1, 4), bool)
    target_in = api.shift_right(ids)
    want = api.apply(model, params, ids, mask, target_in, mask)
    sentence, state = api.encode(model, params, ids, mask, max_length=4)
    for t in range(4):
        got, state = api.decode_step(
            model, params, target_in[:, t : t + 1], jnp.int32(t), state, sentence
        )
        np.testing.assert_allclose(got[:, 0], want[:, t], atol=2e-5)


def test_what_it_refuses(names):
    cls = names["MovingAverage"]
    backwards = replace(config(cls), encoder=config(cls).decoder)
    with pytest.raises(UserError, match="mixers=moving_average: .* looks only backwards; use"):
        check_model_config(backwards)
    with pytest.raises(UserError, match="options.moving_average.longest=0.5: must be more than 1"):
        check_model_config(config(cls, longest=0.5))
    with pytest.raises(UserError, match="no attention weights to drop"):
        check_model_config(replace(config(cls), attention_dropout_rate=0.1))
