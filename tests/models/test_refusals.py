"""Mixers and options that a role cannot use are refused with a reason before anything is built."""

from dataclasses import replace

import pytest
from pydantic import TypeAdapter, ValidationError

import transformer_jax as tj
from transformer_jax.mixers.registry import CROSS_MIXERS, MIXERS
from transformer_jax.models.config import check_model_config

SMALL = tj.ModelConfig(source_vocab_size=20, target_vocab_size=20, d_model=16, num_heads=2)


def refusal(**change):
    with pytest.raises(tj.UserError) as refused:
        check_model_config(replace(SMALL, **change))
    return str(refused.value)


@pytest.mark.parametrize(
    ("role", "name"),
    [(r, n) for r in ("encoder", "decoder") for n, c in MIXERS.items() if r in c.refuses],
)
def test_a_role_that_a_mixer_cannot_play_is_refused_with_its_reason(role, name):
    reason = MIXERS[name].refuses[role]
    stack = tj.StackConfig(num_layers=2, mixers=(tj.Full(), MIXERS[name]()))
    assert refusal(**{role: stack}) == f"model.{role}.mixers={name}: {reason}"
    assert "; use " in reason


@pytest.mark.parametrize("name", sorted(set(MIXERS) - set(CROSS_MIXERS)))
def test_what_cannot_read_the_memory_says_why_and_what_can(name):
    with pytest.raises(ValidationError) as refused:
        TypeAdapter(tj.ModelConfig).validate_python({"cross": name})
    reason, _, advice = refused.value.errors()[0]["msg"].partition("; use ")
    assert f"{name}: " in reason
    assert "sequence" in reason or "position in the source" in reason
    assert advice == "full or linear or linformer or performer"


@pytest.mark.parametrize(
    ("role", "name", "option", "words"),
    [
        ("decoder", "mlp_mixer", {"hidden": 8}, "a decoder has model.max_length hidden units"),
        ("encoder", "linear", {"chunk": 8}, "only a decoder trains in chunks"),
        ("encoder", "performer", {"chunk": 8}, "only a decoder trains in chunks"),
        ("decoder", "mamba", {"combine": "concat"}, "a decoder reads forwards only"),
        ("decoder", "h3", {"share_weights": True}, "a decoder reads forwards only"),
    ],
)
def test_an_option_of_the_other_role_is_refused(role, name, option, words):
    (key, value), other = *option.items(), {"encoder": "decoder", "decoder": "encoder"}[role]
    stack = tj.StackConfig(mixers=(MIXERS[name](**option),))
    message = refusal(**{role: stack})
    assert message.startswith(f"model.{role}.mixers={name}({key}={value!r}): {key}={value} has no")
    assert message.endswith(f"{words}; set it in model.{other}")
    check_model_config(replace(SMALL, **{other: stack}))


@pytest.mark.parametrize(
    ("spelling", "words"),
    [
        ("bigbird(block_size=0)", "greater than 0"),
        ("full(dropout_rate=1.0)", "less than 1"),
        ("full(num_kv_heads=-1)", "num_kv_heads=-1.: .*greater than 0"),
        ("full(num_kv_heads=3)", "num_kv_heads=3: must divide model.num_heads=2"),
        ("full(sinks=true,implementation=fused)", "implementation=fused.*no sinks"),
        ("h3(head_dim=3)", "head_dim=3: must divide model.d_model=16"),
        ("linear(dropout_rate=0.1)", "linear has no option 'dropout_rate'"),
        ("reformer(buckets=5)", "buckets=5: .*give an even number"),
        ("rwkv(chunk=24)", "must be a power of two"),
        ("rwkv(version=7,lerp_rank=8)", "lerp_rank=8 has no effect here"),
        ("s4d(state_size=3)", "multiple of 2"),
        ("s4d(dt_min=0.2)", "dt_min=0.2 is larger than dt_max=0.1"),
        ("ssd(head_dim=5)", "divisor of 32"),
        ("ssd(groups=3)", "groups=3"),
        ("ssd(combine=one_pass,share_weights=true)", "share_weights=True has no effect here"),
    ],
)
def test_an_option_that_cannot_work_is_named(spelling, words):
    with pytest.raises((tj.UserError, ValidationError), match=words) as refused:
        stack = TypeAdapter(tj.StackConfig).validate_python({"mixers": spelling})
        check_model_config(replace(SMALL, encoder=stack))
    assert "mixers" in str(refused.value)


def test_rotary_positions_turn_pairs_of_features():
    stack = tj.StackConfig(mixers=(tj.Performer(features=7),))
    check_model_config(replace(SMALL, encoder=stack))
    assert "must be even" in refusal(encoder=replace(stack, position=tj.Rope()))


def test_a_name_in_place_of_an_object_is_refused_with_the_object():
    message = refusal(encoder=tj.StackConfig(mixers=("window",)))
    assert message.startswith("model.encoder: in Python, write StackConfig(num_layers=6, mixers=")
