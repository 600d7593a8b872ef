"""The time of a kernel from its HLO text, in the forms that XLA writes for a GPU."""

import pytest

from tests.plan.hlo_text import SPLASH, instructions
from transformer_jax.plan.devices import Device, Target
from transformer_jax.plan.hlo import parse
from transformer_jax.plan.roofline import (
    bytes_moved,
    flops,
    kernel_seconds,
    runs_a_kernel,
)
from transformer_jax.plan.step_time import computing_by_part, estimate

#: A bfloat16 FLOP takes 1.25 ns with the four fifths that products reach, and so does a byte.
DEVICE = Device("made up", 1 << 30, flops=1e9, bandwidth=0.8e9)

PRODUCT = """\
%a = DTYPE[64,32]{1,0} parameter(0)
%b = DTYPE[32,16]{1,0} parameter(1)
%y = (DTYPE[64,16]{1,0}, s8[4194304]{0}) custom-call(%a, %b), \
custom_call_target="__cublas$lt$matmul", backend_config={"gemm_backend_config":{\
"dot_dimension_numbers":{"lhs_contracting_dimensions":["1"],"rhs_contracting_dimensions":["0"]},\
"epilogue":"DEFAULT"}}
"""


def only(module, name):
    return {i.name: i for body in module.computations.values() for i in body}[name]


@pytest.mark.parametrize(("dtype", "itemsize"), [("bf16", 2), ("f32", 4), ("f8e4m3fn", 1)])
def test_a_product_of_cublas(dtype, itemsize):
    module, by_name = instructions(*PRODUCT.replace("DTYPE", dtype).splitlines())
    product = by_name["y"]
    assert flops(module, product) == 2 * 64 * 32 * 16
    assert bytes_moved(module, product) == itemsize * (64 * 32 + 32 * 16 + 64 * 16)  # no workspace
    # Wider operands are slower.
    seconds = kernel_seconds(module, product, DEVICE)
    assert seconds == pytest.approx(1.25e-9 * 2 * 64 * 32 * 16 * itemsize / 2)
    slow_memory = Device("made up", 1 << 30, flops=1e15, bandwidth=1.0)
    assert kernel_seconds(module, product, slow_memory) == bytes_moved(module, product)


@pytest.mark.parametrize(("direction", "products"), [("", 2), ("Backward", 5)])
def test_attention_of_cudnn(direction, products):
    config = (
        '{"cudnn_fmha_backend_config":{"fmha_scale":0.125,'
        '"intermediate_tensor_shape":{"dimensions":["3","8","40","56"],"element_type":"BF16"}}}'
    )
    module, by_name = instructions(
        "%q = bf16[3,40,8,64]{3,2,1,0} parameter(0)",
        f'%y = (bf16[3,40,8,64], u8[0]) custom-call(%q), custom_call_target="__cudnn$fmhaSoftmax'
        f'{direction}", backend_config={config}',
    )
    assert flops(module, by_name["y"]) == products * 2 * 3 * 8 * 40 * 56 * 64


FUSIONS = """\
%rows (table: f32[100,4], ids: s32[8,1], padded: f32[10,4]) -> f32[8,4] {
  %table = f32[100,4]{1,0} parameter(0)
  %ids = s32[8,1]{1,0} parameter(1)
  %padded = f32[10,4]{1,0} parameter(2)
  %double = f32[100,4]{1,0} add(%table, %table)
  %taken = f32[8,4]{1,0} gather(%double, %ids), offset_dims={1}
  %real = f32[8,4]{1,0} slice(%padded), slice={[0:8], [0:4]}
  ROOT %sum = f32[8,4]{1,0} add(%taken, %real)
}

%write (stack: f32[100,4], row: f32[1,4], at: s32[]) -> f32[100,4] {
  %stack = f32[100,4]{1,0} parameter(0)
  %row = f32[1,4]{1,0} parameter(1)
  %at = s32[] parameter(2)
  %old = f32[100,4]{1,0} bitcast(%stack)
  %new = f32[100,4]{1,0} dynamic-update-slice(%old, %row, %at, %at)
  ROOT %view = f32[100,4]{1,0} bitcast(%new)
}

%multiply (x: bf16[8,4], w: bf16[4,2]) -> (f32[8,2], f32[8]) {
  %x = bf16[8,4]{1,0} parameter(0)
  %w = bf16[4,2]{1,0} parameter(1)
  %d = f32[8,2]{1,0} dot(%x, %w), lhs_contracting_dims={1}, rhs_contracting_dims={0}
  %r = f32[8]{0} reduce(%d, %x), dimensions={1}, to_apply=%s
  ROOT %t = (f32[8,2]{1,0}, f32[8]{0}) tuple(%d, %r)
}

%turned (x: f32[8,4]) -> f32[4,8] {
  %xt = f32[8,4]{1,0} parameter(0)
  ROOT %z = f32[4,8]{1,0} transpose(%xt), dimensions={1,0}
}

%long (c: f32[8,4]) -> f32[8,4] {
  %c = f32[8,4]{1,0} parameter(0)
  %c1 = f32[8,4]{1,0} copy(%c)
  ROOT %c2 = f32[8,4]{1,0} copy(%c1)
}

%short (e: f32[8,4]) -> f32[8,4] {
  ROOT %e = f32[8,4]{1,0} parameter(0)
}

ENTRY %main (t: f32[100,4], i: s32[8,1], p: f32[10,4]) -> f32[4,8] {
  %t = f32[100,4]{1,0} parameter(0)
  %i = s32[8,1]{1,0} parameter(1)
  %p = f32[10,4]{1,0} parameter(2)
  %taking = f32[8,4]{1,0} fusion(%t, %i, %p), kind=kLoop, calls=%rows
  %writing = f32[100,4]{1,0} fusion(%t, %p, %i), kind=kLoop, calls=%write
  %times = (f32[8,2], f32[8]) fusion(%p, %p), kind=kCustom, calls=%multiply
  %either = f32[8,4] conditional(%i, %taking, %taking), branch_computations={%short, %long}
  ROOT %turning = f32[4,8]{1,0} fusion(%either), kind=kLoop, calls=%turned
}
"""


@pytest.mark.parametrize(
    ("name", "count"),
    [
        # Of a table its gathered rows, the ids, the part of the padded array, the result.
        ("taking", 4 * (8 * 4 + 8 + 8 * 4 + 8 * 4)),
        # The row is read and written; the index is read.
        ("writing", 4 * (4 + 4 + 1)),
        ("times", 2 * (8 * 4 + 4 * 2) + 4 * (8 * 2 + 8)),
        ("turning", 2 * 4 * 8 * 4),
    ],
)
def test_bytes_of_a_fusion(name, count):
    module = parse(FUSIONS)
    assert bytes_moved(module, only(module, name)) == count


def test_a_product_inside_a_fusion_and_the_longer_branch_count():
    module = parse(FUSIONS)
    assert flops(module, only(module, "times")) == 2 * 8 * 4 * 2
    time = estimate(module, Target([], DEVICE))
    # Four fusions, and two copies of the longer branch.
    assert time.kernels == 6
    kinds = computing_by_part(module, lambda i: float(runs_a_kernel(i)))["optimizer, rest"]
    assert kinds == {"products": 1.0, "copies": 3.0, "other": 2.0}
    assert (
        time.computing
        == time.seconds
        == pytest.approx(
            sum(
                kernel_seconds(module, only(module, n), DEVICE)
                for n in ("taking", "writing", "times")
            )
            + 3 * 2 * 4 * 8 * 4 / DEVICE.bandwidth
        )
    )


@pytest.mark.parametrize(("kernel", "products"), [("fwd", 2), ("dq", 3), ("dkv", 4)])
def test_splash_attention(kernel, products):
    """4 heads, 256 queries, 384 keys, width 64."""
    module = parse(SPLASH.replace("splash_mha_fwd", f"splash_mha_{kernel}"))
    *_, splash, result = module.computations["main"]
    # Behind the line breaks in a kernel's metadata.
    assert "op_name" in splash.attributes and "op_name" in result.attributes
    assert flops(module, splash) == products * 2 * 4 * 256 * 384 * 64
    # A matrix unit of 128 x 128 is half empty, and one of 32 x 32 is not.
    for unit, width in ((128, 128), (32, 64), (48, 96)):
        device = Device("made up", 1 << 30, 1e9, 1e30, clock=1.0, matrix_unit=unit)
        time = products * 2 * 4 * 256 * 384 * width / (0.8 * 1e9)
        assert kernel_seconds(module, splash, device) == pytest.approx(time)
        assert estimate(module, Target([None], device)).computing == pytest.approx(time)


def test_causal_splash_attention_skips_blocks():
    # Two blocks on each side: three of four are computed.
    text = SPLASH.replace("s8[1,2,3]", "s8[1,2,2]").replace("bf16[2,384,64]", "bf16[2,256,64]")
    text = text.replace(
        "  %splash", "  %i = s32[256,128]{1,0} constant({...})\n  %splash", 1
    ).replace("%k, %k)", "%k, %k, %i, %i, %i)")
    module = parse(text)
    splash = next(one for one in module.computations["main"] if one.opcode == "custom-call")
    assert flops(module, splash) == 2 * 2 * 4 * 256 * 256 * 64 * 3 // 4
