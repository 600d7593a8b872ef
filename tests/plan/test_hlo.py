"""Reading HLO: on small modules written here by hand, in the forms that XLA writes."""

import pytest

from transformer_jax.plan.collectives import by_kind, collective, group_size
from transformer_jax.plan.devices import Device
from transformer_jax.plan.hlo import parse, walk
from transformer_jax.plan.timeline import estimate, link_bandwidth, roofline

MODULE = """\
HloModule jit_small, is_scheduled=true, entry_computation_layout={(f32[8,4]{1,0})->f32[8,4]{1,0}}

%sum (a: f32[], b: f32[]) -> f32[] {
  %a = f32[] parameter(0)
  %b = f32[] parameter(1)
  ROOT %s = f32[] add(%a, %b)
}

%fused (p: f32[8,4]) -> f32[8,4] {
  %p = f32[8,4]{1,0:T(8,128)} parameter(0)
  ROOT %n = f32[8,4]{1,0:T(8,128)} negate(%p), backend_config={"estimated_cycles":"999999"}
}

%turn (t: (s32[], f32[8,4])) -> (s32[], f32[8,4]) {
  %t = (s32[]{:T(128)}, f32[8,4]{1,0:T(8,128)S(1)}) parameter(0)
  %i = s32[]{:T(128)} get-tuple-element(%t), index=0
  %x = f32[8,4]{1,0:T(8,128)S(1)} get-tuple-element(%t), index=1
  %y = f32[8,4]{1,0:T(8,128)} fusion(%x), calls=%fused, backend_config={"estimated_cycles":"200"}
  %g = f32[16,4]{1,0:T(8,128)} all-gather(%y), replica_groups=[4,2]<=[8], dimensions={0}
  ROOT %r = (s32[]{:T(128)}, f32[8,4]{1,0:T(8,128)S(1)}) tuple(%i, %y)
}

%goes_on (t: (s32[], f32[8,4])) -> pred[] {
  %t = (s32[], f32[8,4]) parameter(0)
  %limit = s32[]{:T(128)} constant(5)
  %i = s32[] get-tuple-element(%t), index=0
  ROOT %more = pred[]{:T(512)} compare(%i, %limit), direction=LT
}

ENTRY %main (w: f32[8,4]) -> f32[8,4] {
  %w = f32[8,4]{1,0:T(8,128)} parameter(0), metadata={op_name="state.params[\\'w\\']"}
  %zero = s32[]{:T(128)} constant(0)
  %start = (s32[], f32[8,4]{1,0}) tuple(%zero, %w)
  %loop = (s32[]{:T(128)}, /*index=1*/f32[8,4]{1,0}) while(%start), condition=%goes_on, body=%turn
  %v = f32[8,4]{1,0} get-tuple-element(%loop), index=1
  %both = (f32[8,4]{1,0}, bf16[10]{0}) all-reduce(%v, %v), replica_groups=mesh['d'=4,'t'=2] {'d'}
  ROOT %out = f32[8,4]{1,0} get-tuple-element(%both), index=0
}
"""

#: 1 GHz and links of 1 GB/s: a cycle is a nanosecond, and so is a byte.
DEVICE = Device("made up", 1 << 30, flops=1e12, bandwidth=1e11, clock=1e9, link=1e9)


def instructions(*lines: str):
    text = "ENTRY %main (p: f32[2]) -> f32[2] {\n" + "\n".join(lines) + "\n}\n"
    module = parse(text)
    return module, {i.name: i for i in module.computations["main"]}


def test_computations_instructions_and_shapes():
    module = parse(MODULE)
    assert module.entry == "main"
    assert set(module.computations) == {"sum", "fused", "turn", "goes_on", "main"}
    found = {i.name: i for i in module.computations["main"]}
    assert found["loop"].opcode == "while"
    assert found["loop"].arrays == (("s32", ()), ("f32", (8, 4)))
    assert found["loop"].called == "turn"
    assert found["both"].operands == ("v", "v")
    assert found["both"].array_bytes == (8 * 4 * 4, 10 * 2)
    assert found["w"].cycles is None
    assert {i.name: i.cycles for i in module.computations["turn"]}["y"] == 200


def test_loops_are_entered_as_often_as_they_run_and_fusions_are_not():
    times = {i.name: count for i, count in walk(parse(MODULE))}
    assert times["y"] == times["g"] == 5
    assert times["both"] == 1
    assert "n" not in times


@pytest.mark.parametrize(
    ("attributes", "count"),
    [
        ('body=%b, backend_config={"known_trip_count":{"n":"7"}}', 7),
        ("condition=%nowhere, body=%b", 1),
    ],
)
def test_trip_count_that_is_stated_or_not_known(attributes, count):
    module, found = instructions(f"%l = (s32[]) while(%t), {attributes}")
    assert module.trip_count(found["l"]) == count


def test_text_that_is_no_module_is_refused():
    with pytest.raises(ValueError, match="ENTRY"):
        parse("nothing here")


def test_collectives_by_kind_with_loops():
    # The all-gather makes 16 x 4 floats, five times; the all-reduce sums 148 bytes.
    assert by_kind(parse(MODULE), 8) == {"all-gather": (5, 5 * 256), "all-reduce": (1, 148)}


@pytest.mark.parametrize(
    ("attributes", "size"),
    [
        ("replica_groups={{0,1,2,3},{4,5,6,7}}, to_apply=%s", 4),
        ("replica_groups=[2,4]<=[8]", 4),
        ("replica_groups=[4,2]<=[2,4]T(1,0), dimensions={0}", 2),
        ("replica_groups=mesh['data'=2,'fsdp'=4] {'data','fsdp'}", 8),
        ("replica_groups=mesh['a'=2,'b'=8] {'b':(2)4}", 4),
        ("replica_groups={}", 8),
        ("to_apply=%s", 8),
    ],
)
def test_group_sizes(attributes, size):
    assert group_size(attributes, 8) == size


def test_bytes_of_started_collectives():
    _, found = instructions(
        "%g = (f32[2,4]{1,0}, f32[8,4]{1,0}) all-gather-start(%x), replica_groups={{0,1,2,3}}",
        "%r = f32[6]{0} all-reduce-start(%x), replica_groups={{0,1,2,3}}, to_apply=%s",
        "%s = f32[5]{0} reduce-scatter(%x), replica_groups={{0,1,2,3}}, dimensions={0}",
        "%p = (f32[3]{0}, f32[3]{0}, u32[], u32[]) collective-permute-start(%x), "
        "source_target_pairs={{0,1}}",
        "%d = f32[6]{0} all-reduce-done(%r)",
    )
    sizes = {name: collective(i, 4).size for name, i in found.items() if name != "d"}
    assert sizes == {"g": 128, "r": 24, "s": 80, "p": 12}
    assert collective(found["d"], 4) is None


def test_collectives_inside_fusions_and_asynchronous_computations():
    text = """
%all-reduce-scatter.1 (p: f32[8]) -> f32[2] {
  %p = f32[8]{0} parameter(0)
  %r = f32[8]{0} all-reduce(%p), replica_groups={{0,1,2,3}}, to_apply=%s
  ROOT %d = f32[2]{0} dynamic-slice(%r), dynamic_slice_sizes={2}
}, execution_thread="main"
%wrapped (p: f32[8]) -> f32[8] {
  ROOT %t = f32[8]{0} all-to-all(%p), replica_groups={{0,1,2,3}}
}
ENTRY %main (p: f32[8]) -> f32[2] {
  %a = ((f32[8]), f32[8], u32[]) async-start(%p), calls=%wrapped
  %b = f32[8]{0} async-done(%a)
  ROOT %f = f32[2]{0} fusion(%p), kind=kCustom, calls=%all-reduce-scatter.1
}
"""
    module = parse(text)
    assert by_kind(module, 4) == {"all-to-all": (1, 32), "reduce-scatter": (1, 32)}
    cycles = 'fusion(%p), backend_config={"estimated_cycles":"10"}, kind=kCustom'
    got = estimate(parse(text.replace("fusion(%p), kind=kCustom", cycles)), DEVICE, 4, (4,))
    assert got.waiting == pytest.approx(2 * 24e-9)


def test_a_ring_sends_this_much():
    _, found = instructions(
        "%r = f32[1000]{0} all-reduce(%x), replica_groups={{0,1,2,3}}, to_apply=%s",
        "%g = f32[1000]{0} all-gather(%x), replica_groups={{0,1,2,3}}, dimensions={0}",
    )
    assert collective(found["r"], 4).sent == 2 * 3 / 4 * 4000
    assert collective(found["g"], 4).sent == 3 / 4 * 4000


def test_a_synchronous_collective_is_waited_for():
    # 5 turns of 200 cycles and of an all-gather among two (128 bytes sent over one link), then
    # an all-reduce among four: 2 * 3/4 * 148 bytes.
    got = estimate(parse(MODULE), DEVICE, 8, (2, 4))
    assert got.computing == pytest.approx(1000e-9)
    assert got.waiting == pytest.approx((5 * 128 + 222) * 1e-9)
    assert got.seconds == pytest.approx(got.computing + got.waiting)
    assert got.hidden == pytest.approx(0)


@pytest.mark.parametrize(("beside", "waiting"), [(100, 50), (400, 0)])
def test_a_started_collective_runs_beside_the_computation(beside, waiting):
    module, _ = instructions(
        "%r = f32[25]{0} all-reduce-start(%x), replica_groups={{0,1,2,3}}, to_apply=%s",
        f'%c = f32[2]{{0}} fusion(%x), calls=%f, backend_config={{"estimated_cycles":"{beside}"}}',
        "%d = f32[25]{0} all-reduce-done(%r)",
    )
    got = estimate(module, DEVICE, 8, (2, 4))  # 150 bytes over one link
    assert got.waiting * 1e9 == pytest.approx(waiting, abs=1e-6)
    assert got.hidden * 1e9 == pytest.approx(150 - waiting)
    assert got.seconds * 1e9 == pytest.approx(beside + waiting)


def test_without_a_compilers_estimates_there_is_none():
    module, _ = instructions("%c = f32[2]{0} fusion(%x), calls=%f")
    assert estimate(module, DEVICE, 8, (2, 4)) is None
    assert (
        roofline(DEVICE, flops=2e12, accessed=1e11).seconds == 2.0
    )  # 1e12 a second, 1e11 a second
    assert roofline(DEVICE, flops=2e12, accessed=3e11).seconds == 3.0


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
    assert link_bandwidth(DEVICE, group, devices, bounds) == links * DEVICE.link
