"""A position scheme must reach the mixers that need it, or the config is refused."""

from dataclasses import dataclass, replace
from typing import ClassVar

import jax
import jax.numpy as jnp
import pytest

import transformer_jax as tj
from tests.small import small_model
from transformer_jax.mixers.registry import MIXERS
from transformer_jax.models import api
from transformer_jax.models.config import check_model_config
from transformer_jax.positions.registry import POSITIONS

SMALL = small_model(20, both=tj.StackConfig(num_layers=2), max_length=12)


@dataclass(frozen=True)
class Unaware(tj.MixerConfig):
    """Applies no hook and does not know the order."""


@dataclass(frozen=True)
class Recurrent(tj.MixerConfig):
    knows_order: ClassVar[bool] = True


@dataclass(frozen=True)
class Rotating(tj.MixerConfig):
    honours: ClassVar[frozenset[str]] = frozenset({"rotate"})


@pytest.fixture(autouse=True)
def more_mixers(monkeypatch):
    for cls in (Unaware, Recurrent, Rotating):
        monkeypatch.setitem(MIXERS, cls.__name__.lower(), cls)


def config(position, *mixers, role="encoder"):
    pattern = tuple(MIXERS[name]() for name in mixers)
    stack = tj.StackConfig(num_layers=2, mixers=pattern, position=POSITIONS[position]())
    return replace(SMALL, **{role: stack})


@pytest.mark.parametrize("role", ["encoder", "decoder"])
@pytest.mark.parametrize(
    ("position", "mixers", "words"),
    [
        ("rope", ("unaware",), "turns queries and keys before their product, which"),
        ("alibi", ("full", "unaware"), "adds a number for each pair .*mixers=unaware does not do"),
        ("t5", ("rotating",), "use model.*position=sinusoidal or .* or rope$"),
        ("alibi", ("recurrent",), "no mixer of the stack does .*position=none or sinusoidal"),
        ("rope", ("full", "unaware", "recurrent"), "mixers=unaware"),
    ],
)
def test_a_hook_that_does_not_reach_a_mixer_is_refused(role, position, mixers, words):
    with pytest.raises(tj.UserError, match=f"model.{role}.position={position} .*{words}"):
        check_model_config(config(position, *mixers, role=role))


@pytest.mark.parametrize(
    ("position", "mixers"),
    [
        ("rope", ("full",)),
        ("rope", ("rotating", "full")),
        ("alibi", ("recurrent", "full")),  # attention applies it, recurrence does not need it
        ("sinusoidal", ("unaware",)),
        ("none", ("recurrent",)),
        ("none", ("unaware",)),  # a bag of words, as the config says
        ("alibi", ("full", "full", "unaware")),  # two layers: the third mixer has none
    ],
)
def test_a_hook_that_reaches_every_mixer_is_accepted(position, mixers):
    check_model_config(config(position, *mixers))


@pytest.mark.parametrize(
    ("position", "words"),
    [
        (tj.T5(num_buckets=5), r"t5\(num_buckets=5\): .*multiple of 2"),
        (tj.T5(num_buckets=2), r"t5\(num_buckets=2\): .*greater than or equal to 4"),
        (tj.T5(max_distance=16), "max_distance=16: must be more than half of num_buckets=32"),
        (tj.Concatenated(width=16), "concatenated.*width=16: .* between 1 and 15"),
        (tj.Rope(base=1.0), r"rope\(base=1.0\): .*greater than 1"),
        (tj.Rope(), "even head width, got 5: set model.head_dim"),
    ],
)
def test_options_that_cannot_work(position, words):
    stack = tj.StackConfig(num_layers=1, position=position)
    head_dim = 5 if position == tj.Rope() else None
    with pytest.raises(tj.UserError, match=f"^model.encoder.position.*{words}"):
        check_model_config(replace(SMALL, encoder=stack, decoder=stack, head_dim=head_dim))


def test_tied_words_need_one_width():
    beside = tj.StackConfig(num_layers=1, position=tj.Concatenated())
    with pytest.raises(tj.UserError, match="leaves them 16 features and model.decoder.position 12"):
        check_model_config(replace(SMALL, decoder=beside))
    check_model_config(replace(SMALL, decoder=beside, tie_embeddings="decoder"))


@pytest.mark.parametrize("position", ["learned", "scalar"])
def test_past_the_trained_length(position):
    stack = tj.StackConfig(num_layers=1, position=POSITIONS[position]())
    long = replace(SMALL, encoder=stack, decoder=stack)
    params = api.init(long, jax.random.key(0))
    ids, mask = jnp.zeros((1, 13), jnp.int32), jnp.ones((1, 13), bool)
    with pytest.raises(
        tj.UserError, match=f"position={position} has at most model.max_length=12 positions, got 13"
    ):
        api.apply(long, params, ids, mask, ids[:, :3], mask[:, :3])
    with pytest.raises(tj.UserError, match=f"position={position}"):
        api.apply(long, params, ids[:, :3], mask[:, :3], ids, mask)
    with pytest.raises(tj.UserError, match=f"position={position}"):
        api.encode(long, params, ids[:, :3], mask[:, :3], max_length=13)
