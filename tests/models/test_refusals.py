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


def with_option(name, **option):
    """Stack options with this one away from its default."""
    return replace(StackConfig().options, **{name: MIXERS[name].Options(**option)})


@pytest.mark.parametrize(
    ("role", "name", "option", "words"),
    [
        ("decoder", "mlp_mixer", {"hidden": 8}, "a decoder's hidden units are as many as"),
        ("encoder", "linear", {"chunk": 8}, "only a decoder's training works in chunks"),
        ("encoder", "performer", {"chunk": 8}, "only a decoder's training works in chunks"),
        ("decoder", "mamba", {"combine": "concat"}, "a decoder reads one way only"),
    ],
)
def test_an_option_of_the_other_role_is_refused(role, name, option, words):
    (key, value), other = *option.items(), {"encoder": "decoder", "decoder": "encoder"}[role]
    stack = StackConfig(mixers=(name,), options=with_option(name, **option))
    said = refusal(**{role: stack})
    assert said.startswith(f"model.{role}.options.{name}.{key}={value} has no effect: {words}")
    assert said.endswith(f"; set it in model.{other}.options")
    check_model_config(replace(SMALL, **{other: stack}))


@pytest.mark.parametrize("role", ["encoder", "decoder"])
def test_an_option_of_a_mixer_that_the_stack_does_not_name_is_refused(role):
    stack = StackConfig(mixers=("full", "linear"), options=with_option("window", window=4))
    assert refusal(**{role: stack}) == (
        f"model.{role}.options.window.window=4 has no effect: model.{role}.mixers is "
        "full,linear; name window there, or leave the option at 128"
    )
    # Beyond the layers that exist is soon enough: num_layers is turned up and down.
    named = replace(stack, num_layers=1, mixers=("full", "window"))
    check_model_config(replace(SMALL, **{role: named}))


def test_an_option_of_a_reader_or_a_scheme_that_is_not_chosen_is_refused():
    options = SMALL.cross_options
    linformer = replace(options, linformer=replace(options.linformer, rank=16))
    assert refusal(cross_options=linformer).startswith(
        "model.cross_options.linformer.rank=16 has no effect: model.cross is full; name"
    )
    check_model_config(replace(SMALL, cross="linformer", cross_options=linformer))
    options = StackConfig().position_options
    t5 = StackConfig(position_options=replace(options, t5=replace(options.t5, num_buckets=8)))
    assert refusal(decoder=t5).startswith(
        "model.decoder.position_options.t5.num_buckets=8 has no effect: "
        "model.decoder.position is sinusoidal; name"
    )
    check_model_config(replace(SMALL, decoder=replace(t5, position="t5")))
