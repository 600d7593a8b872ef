"""Where the time goes: on a small module written here by hand."""

import jax
import jax.numpy as jnp
import pytest

from transformer_jax.models import api
from transformer_jax.models.config import ModelConfig, StackConfig
from transformer_jax.plan.breakdown import PARTS, REST, breakdown
from transformer_jax.plan.devices import Device
from transformer_jax.plan.hlo import parse
from transformer_jax.plan.timeline import estimate


def named(path, cycles):
    """What XLA writes after an instruction."""
    return f'metadata={{op_name="{path}"}}, backend_config={{"estimated_cycles":"{cycles}"}}'


LOSS = "jit(step)/jvp(Transformer.loss)"
BLOCK = LOSS + "/Transformer.hidden/decoder/blocks_0"
MIXER = BLOCK + "/mixer_residual"
CROSS = BLOCK + "/blocks._read_and_feed/cross_residual/cross"
FEED = BLOCK + "/feed_forward_residual/feed_forward/up"
MODULE = f"""\
%with_a_product (p: f32[8,8]) -> f32[8,8] {{
  %p = f32[8,8]{{1,0}} parameter(0)
  %c = f32[8,8]{{1,0}} convolution(%p, %p), dim_labels=bf_io->bf
  ROOT %r = f32[8,8]{{1,0}} subtract(%c, %p)
}}

%without (p: f32[8,8]) -> f32[8,8] {{
  %p = f32[8,8]{{1,0}} parameter(0)
  ROOT %r = f32[8,8]{{1,0}} negate(%p)
}}

%turn (t: (s32[], f32[8,8])) -> (s32[], f32[8,8]) {{
  %t = (s32[], f32[8,8]{{1,0}}) parameter(0)
  %i = s32[] get-tuple-element(%t), index=0
  %x = f32[8,8]{{1,0}} get-tuple-element(%t), index=1
  %y = f32[8,8]{{1,0}} fusion(%x), calls=%with_a_product, {named(LOSS + "/while/dot", 10)}
  ROOT %r = (s32[], f32[8,8]{{1,0}}) tuple(%i, %y)
}}

%goes_on (t: (s32[], f32[8,8])) -> pred[] {{
  %t = (s32[], f32[8,8]) parameter(0)
  %limit = s32[] constant(5)
  %i = s32[] get-tuple-element(%t), index=0
  ROOT %more = pred[] compare(%i, %limit), direction=LT
}}

ENTRY %main (w: f32[8,8]) -> f32[8,8] {{
  %w = f32[8,8]{{1,0}} parameter(0)
  %a = f32[8,8]{{1,0}} fusion(%w), calls=%with_a_product, {named(MIXER + "/mixer/sub", 100)}
  %b = f32[8,8]{{0,1}} copy(%a), {named(MIXER + "/mixer/heads.queries/norm/reshape", 30)}
  %c = f32[8,8]{{1,0}} fusion(%b), calls=%without, {named(MIXER + "/norm/reduce_sum", 7)}
  %d = f32[8,8]{{1,0}} fusion(%c), calls=%with_a_product, {named(CROSS + ".read/dot_general", 20)}
  %e = f32[8,8]{{1,0}} fusion(%d), calls=%without, {named(FEED + "/reduce_sum", 2)}
  %f = f32[8,8]{{1,0}} fusion(%e), calls=%without, {named("jit(step)/mul", 1)}
  %zero = s32[] constant(0)
  %start = (s32[], f32[8,8]{{1,0}}) tuple(%zero, %f)
  %loop = (s32[], f32[8,8]{{1,0}}) while(%start), condition=%goes_on, body=%turn
  ROOT %out = f32[8,8]{{1,0}} get-tuple-element(%loop), index=1
}}
"""


def test_every_instruction_belongs_to_a_part_and_a_kind():
    device = Device("made up", 1 << 30, flops=1e12, bandwidth=1e11, clock=1.0)
    assert breakdown(parse(MODULE), device) == {
        "mixers": {"products": 100, "copies": 30, "other": 0},
        "loss": {"products": 50, "copies": 0, "other": 0},  # a loop of five turns
        "cross-attention": {"products": 20, "copies": 0, "other": 0},
        "normalisation": {"products": 0, "copies": 0, "other": 7},
        "feed-forward": {"products": 0, "copies": 0, "other": 2},
        REST: {"products": 0, "copies": 0, "other": 1},
    }


def test_the_parts_are_the_whole_of_the_computing():
    device = Device("made up", 1 << 30, flops=1e12, bandwidth=1e11, clock=1e9)
    module = parse(MODULE)
    parts = breakdown(module, device).values()
    whole = estimate(module, device, 1, ()).computing
    assert sum(sum(kinds.values()) for kinds in parts) == pytest.approx(whole)


def test_without_estimates_there_is_none():
    device = Device("made up", 1 << 30, flops=1e12, bandwidth=1e11)
    assert breakdown(parse(MODULE), device) == {}


@pytest.mark.parametrize("part", [name for name, _ in PARTS])
def test_the_model_has_the_names_that_are_looked_for(part, compiled_step):
    """Were a module renamed, its time would go to the rest without a word."""
    assert dict(PARTS)[part].search(compiled_step)


@pytest.fixture(scope="module")
def compiled_step():
    """The text of a training step of a small model."""
    stack = StackConfig(num_layers=1)
    config = ModelConfig(
        source_vocab_size=9,
        target_vocab_size=9,
        d_model=8,
        d_ff=8,
        num_heads=2,
        encoder=stack,
        decoder=stack,
        max_length=8,
    )
    ids, mask = jnp.ones((2, 4), jnp.int32), jnp.ones((2, 4), bool)
    batch = {"source": ids, "source_mask": mask, "target": ids, "target_mask": mask}
    params = api.init(config, jax.random.key(0))

    def loss(params):
        return api.loss(config, params, batch, label_smoothing=0.1)[0]

    return jax.jit(jax.grad(loss)).lower(params).compile().as_text()
