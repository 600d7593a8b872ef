"""What a role cannot have is refused with its reason before anything is built."""

from dataclasses import replace

import pytest

from transformer_jax.errors import UserError
from transformer_jax.mixers.registry import CROSS_MIXERS, MIXERS
from transformer_jax.models.config import ModelConfig, StackConfig, check_model_config

SMALL = ModelConfig(source_vocab_size=20, target_vocab_size=20, d_model=16, num_heads=2)


def refusal(**change):
    with pytest.raises(UserError) as refused:
        check_model_config(replace(SMALL, **change))
    return str(refused.value)


@pytest.mark.parametrize(
    ("role", "name"),
    [(r, n) for r in ("encoder", "decoder") for n, c in MIXERS.items() if r in c.refuses],
)
def test_a_role_that_a_mixer_cannot_play_is_refused_with_its_reason(role, name):
    reason = MIXERS[name].refuses[role]
    stack = StackConfig(num_layers=2, mixers=("full", name))
    assert refusal(**{role: stack}) == f"model.{role}.mixers={name}: {reason}"
    assert "; use " in reason


@pytest.mark.parametrize("name", sorted(set(MIXERS) - set(CROSS_MIXERS)))
def test_what_cannot_read_the_memory_says_why_and_what_can(name):
    key, _, rest = refusal(cross=name).partition(": ")
    reason, _, advice = rest.partition("; use ")
    assert key == f"model.cross={name}"
    assert "sequence" in reason or "place in the source" in reason
    assert advice == "full or linear or linformer or performer"


def test_a_mixer_that_reads_the_memory_does_not_refuse_to():
    assert not [name for name in CROSS_MIXERS if "cross" in MIXERS[name].refuses]


def test_a_reader_of_the_memory_that_nobody_knows():
    assert "model.cross=windoww is unknown; choose one of full, linear" in refusal(cross="windoww")
