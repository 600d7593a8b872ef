"""Reading HLO and its collectives, on small modules written by hand in the forms of XLA."""

import pytest

from tests.plan.hlo_text import INSIDE_COMPUTATIONS, MODULE, instructions
from transformer_jax.plan.hlo import by_kind, collective, group_size, parse


@pytest.mark.parametrize(
    ("attributes", "count"),
    [
        ('body=%b, backend_config={"known_trip_count":{"n":"7"}}', 7),
        ("condition=%nowhere, body=%b", 1),
    ],
)
def test_trip_count_stated_or_unknown(attributes, count):
    module, by_name = instructions(f"%l = (s32[]) while(%t), {attributes}")
    assert module.trip_count(by_name["l"]) == count


def test_collectives_by_kind_with_loops():
    # The all-gather makes 16 x 4 floats, five times; the all-reduce sums 8 x 4 floats and ten of
    # bfloat16.
    assert by_kind(parse(MODULE), 8) == {"all-gather": (5, 5 * 256), "all-reduce": (1, 148)}


@pytest.mark.parametrize(
    ("attributes", "size"),
    [
        ("replica_groups={{0,1,2,3},{4,5,6,7}}, to_apply=%s", 4),
        ("replica_groups=[2,4]<=[8]", 4),
        ("replica_groups=[4,2]<=[2,4]T(1,0), dimensions={0}", 2),
        ("replica_groups=mesh['data'=2,'fsdp'=4] {'data','fsdp'}", 8),
        ("replica_groups=mesh['a'=2,'b'=8] {'b':(2)4}", 4),
        ("replica_groups=mesh['a'=2,'b'=4], device_ids=([2,4]T(1,0)) {'b'}", 4),
        ("replica_groups={}", 8),
        ("to_apply=%s", 8),
    ],
)
def test_group_sizes(attributes, size):
    assert group_size(attributes, 8) == size


def test_bytes_of_started_collectives():
    _, by_name = instructions(
        "%g = (f32[2,4]{1,0}, f32[8,4]{1,0}) all-gather-start(%x), replica_groups={{0,1,2,3}}",
        "%r = f32[6]{0} all-reduce-start(%x), replica_groups={{0,1,2,3}}, to_apply=%s",
        "%s = f32[5]{0} reduce-scatter(%x), replica_groups={{0,1,2,3}}, dimensions={0}",
        "%p = (f32[3]{0}, f32[3]{0}, u32[], u32[]) collective-permute-start(%x), "
        "source_target_pairs={{0,1}}",
        "%d = f32[6]{0} all-reduce-done(%r)",
    )
    sizes = {name: collective(i, 4).size for name, i in by_name.items() if name != "d"}
    assert sizes == {"g": 128, "r": 24, "s": 80, "p": 12}
    assert collective(by_name["d"], 4) is None


def test_collectives_inside_fusions_and_asynchronous_computations():
    module = parse(INSIDE_COMPUTATIONS)
    assert by_kind(module, 4) == {"all-to-all": (1, 32), "reduce-scatter": (1, 32)}
