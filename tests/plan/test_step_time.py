"""The estimated time of a step, and its parts, on small modules written by hand."""

import jax
import pytest

from tests.plan.hlo_text import MODULE, instructions
from tests.small import small_model
from tests.training import toy
from transformer_jax.models import api
from transformer_jax.models.config import StackConfig
from transformer_jax.plan.devices import Device, Target
from transformer_jax.plan.gpu import NETWORK, NODES, send_rate
from transformer_jax.plan.hlo import parse
from transformer_jax.plan.step_time import PARTS, REST, computing_by_part, estimate
from transformer_jax.plan.tpu import link_bandwidth

#: 1 GHz and links of 1 GB/s: a cycle takes a nanosecond, and so does a byte.
DEVICE = Device("made up", 1 << 30, flops=1e12, bandwidth=1e11, clock=1e9, link=1e9)


def slice_of(count: int, *bounds: int, device: Device = DEVICE) -> Target:
    """A slice of `count` devices; the same JAX device stands for all of them."""
    return Target(
        jax.devices()[:1] * count,
        device,
        send_rate=lambda group: link_bandwidth(device, bounds, group, count),
    )


def named(path, cycles):
    """What XLA writes after an instruction."""
    return f'metadata={{op_name="{path}"}}, backend_config={{"estimated_cycles":"{cycles}"}}'


LOSS = "jit(step)/jvp(Transformer.loss)"
BLOCK = LOSS + "/Transformer.hidden/decoder/blocks_0"
MIXER = BLOCK + "/mixer_residual"
CROSS = BLOCK + "/blocks._read_and_feed/cross_residual/cross"
FEED = BLOCK + "/feed_forward_residual/feed_forward/up"
STEP = f"""\
%with_a_product (p: f32[8,8]) -> f32[8,8] {{
  %p = f32[8,8]{{1,0}} parameter(0)
  %c = f32[8,8]{{1,0}} convolution(%p, %p), dim_labels=bf_io->bf
  ROOT %r = f32[8,8]{{1,0}} subtract(%c, %p)
}}

%without (p: f32[8,8]) -> f32[8,8] {{
  %p = f32[8,8]{{1,0}} parameter(0)
  ROOT %r = f32[8,8]{{1,0}} negate(%p)
}}

ENTRY %main (w: f32[8,8]) -> f32[8,8] {{
  %w = f32[8,8]{{1,0}} parameter(0)
  %a = f32[8,8]{{1,0}} fusion(%w), calls=%with_a_product, {named(MIXER + "/mixer/sub", 100)}
  %b = f32[8,8]{{0,1}} copy(%a), {named(MIXER + "/mixer/heads.queries/norm/reshape", 30)}
  %c = f32[8,8]{{1,0}} fusion(%b), calls=%without, {named(MIXER + "/norm/reduce_sum", 7)}
  %d = f32[8,8]{{1,0}} fusion(%c), calls=%with_a_product, {named(CROSS + ".read/dot_general", 20)}
  %e = f32[8,8]{{1,0}} fusion(%d), calls=%without, {named(FEED + "/reduce_sum", 2)}
  %f = f32[8,8]{{1,0}} fusion(%e), calls=%without, {named("jit(step)/mul", 1)}
  ROOT %g = f32[8,8]{{1,0}} fusion(%f), calls=%with_a_product, {named(LOSS + "/while/dot", 50)}
}}
"""


def test_every_instruction_belongs_to_a_part_and_a_kind():
    assert computing_by_part(parse(STEP), lambda one: float(one.cycles)) == {
        "mixers": {"products": 100, "copies": 30, "other": 0},
        "loss": {"products": 50, "copies": 0, "other": 0},
        "cross-attention": {"products": 20, "copies": 0, "other": 0},
        "normalisation": {"products": 0, "copies": 0, "other": 7},
        "feed-forward": {"products": 0, "copies": 0, "other": 2},
        REST: {"products": 0, "copies": 0, "other": 1},
    }


@pytest.mark.parametrize("part", PARTS)
def test_the_patterns_match_names_of_the_model(part, compiled_step):
    """If a module were renamed, its time would silently count for the rest."""
    assert PARTS[part].search(compiled_step)


@pytest.fixture(scope="module")
def compiled_step():
    """The text of a training step of a small model."""
    two = StackConfig(num_layers=2)
    config = small_model(toy.VOCAB, encoder=two, scan_layers=True, max_length=8)
    params = api.abstract_params(config)

    def loss(params):
        return api.loss(config, params, toy.batch(0), label_smoothing=0.1)[0]

    return jax.jit(jax.grad(loss)).lower(params).compile().as_text()


def test_the_computation_waits_for_a_synchronous_collective():
    # 5 iterations of 200 cycles and of an all-gather among two (128 bytes sent over one link), then
    # an all-reduce among four: 2 * 3/4 * 148 bytes.
    time = estimate(parse(MODULE), slice_of(8, 2, 4))
    assert time.computing == pytest.approx(1000e-9)
    assert time.parts == {REST: {"products": 0, "copies": 0, "other": pytest.approx(1000e-9)}}
    assert time.waiting == pytest.approx((5 * 128 + 222) * 1e-9)
    assert time.seconds == pytest.approx(time.computing + time.waiting)
    assert time.hidden == pytest.approx(0)


@pytest.mark.parametrize(("beside", "waiting"), [(100, 50), (400, 0)])
def test_a_started_collective_runs_beside_the_computation(beside, waiting):
    module, _ = instructions(
        "%r = f32[25]{0} all-reduce-start(%x), replica_groups={{0,1,2,3}}, to_apply=%s",
        f'%c = f32[2]{{0}} fusion(%x), calls=%f, backend_config={{"estimated_cycles":"{beside}"}}',
        "%d = f32[25]{0} all-reduce-done(%r)",
    )
    time = estimate(module, slice_of(8, 2, 4))  # 150 bytes over one link
    assert time.waiting * 1e9 == pytest.approx(waiting, abs=1e-6)
    assert time.hidden * 1e9 == pytest.approx(150 - waiting)
    assert time.seconds * 1e9 == pytest.approx(beside + waiting)


def test_without_cycles_there_is_no_estimate_for_a_tpu():
    module, _ = instructions("%c = f32[2]{0} fusion(%x), calls=%f")
    assert estimate(module, slice_of(8, 2, 4)) is None


@pytest.mark.parametrize(
    ("group", "devices", "bounds", "links"),
    [
        (8, 8, (2, 4), 2),
        (4, 8, (2, 4), 1),
        (256, 256, (16, 16), 4),
        (16, 256, (16, 16), 2),
        (8, 8, (2, 2, 2), 3),
        (4, 4, (1, 4), 1),
    ],
)
def test_links_of_a_group(group, devices, bounds, links):
    assert link_bandwidth(DEVICE, bounds, group, devices) == links * DEVICE.link


def test_a_group_of_gpus_sends_over_nvlink_or_the_adapters_of_its_nodes():
    device = NODES["h100"].device
    assert send_rate(device, 8, 8) == send_rate(device, 8, 2) == device.link
    assert send_rate(device, 8, 16) == 8 * NETWORK < device.link
    assert send_rate(device, 1, 2) == NETWORK
