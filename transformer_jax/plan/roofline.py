"""The time of one kernel by the roofline model, from the text of the compiled program.

    max(FLOPs / (0.8 peak), bytes / bandwidth)          (Williams et al. 2009)

Every kernel of a GPU has its time from it. On a TPU only splash attention has, because the compiler
gives no estimate for it. FLOPs are those of matrix products, in cuBLAS, in attention by a kernel or
inside a fusion; the best products of cuBLAS reach four fifths of the peak. Bytes are those of a
kernel's operands and results in device memory. Of an operand of which a fusion reads only slices,
the slices count, and of a result that it updates in place, the update.
"""

import math
import re
from collections.abc import Iterable

from transformer_jax.plan.devices import Device
from transformer_jax.plan.hlo import COLLECTIVES, Array, Instruction, Module, first

#: The part of the peak that large products reach.
_REACHED = 0.8

#: Instructions that run no kernel, or whose kernels are inside. Collectives take their time from
#: the links (`step_time`).
_NO_KERNEL = {
    *("parameter", "constant", "tuple", "get-tuple-element", "bitcast", "opt-barrier"),
    *("while", "call", "conditional", "after-all", "partition-id", "replica-id"),
    *("async-start", "async-update", "async-done", "copy-done"),
}
#: Of a dot's attributes, and of the JSON beside cuBLAS's products.
_CONTRACTED = re.compile(r'lhs_contracting_dim(?:ension)?s"?[=:][{[]([\d,"]*)')
_SCORES = re.compile(r'"intermediate_tensor_shape":\{[^}]*"dimensions":\[([\d,"]*)')
_SLICES = ("dynamic-slice", "slice", "gather")
_UPDATES = {"dynamic-update-slice": 1, "scatter": 2}  # opcode -> which operand is the update

#: Products of the size of Q K^T in each kernel of splash attention: forwards, for the queries, for
#: keys and values.
_SPLASH = re.compile(r"^splash_m[hq]a_(fwd|dq|dkv)_")
_SPLASH_PRODUCTS = {"fwd": 2, "dq": 3, "dkv": 4}


def runs_a_kernel(instruction: Instruction) -> bool:
    """Whether the GPU runs a kernel, or a copy, for this instruction alone."""
    kind = instruction.opcode.removesuffix("-start").removesuffix("-done")
    return instruction.opcode not in _NO_KERNEL and kind not in COLLECTIVES


def kernel_seconds(module: Module, instruction: Instruction, device: Device) -> float:
    """The time of an instruction's kernel; 0.0 if it has none of its own."""
    if not runs_a_kernel(instruction):
        return 0.0
    # A peak is that of bfloat16. Operands of half the size are twice as fast, and float32 is
    # rounded to TF32 at half the speed.
    itemsize = instruction.inputs[0][0].itemsize if is_library_call(instruction) else 2
    peak = device.flops * 2 / itemsize
    needed = flops(module, instruction, device.matrix_unit)
    return max(needed / (_REACHED * peak), bytes_moved(module, instruction) / device.bandwidth)


def is_library_call(instruction: Instruction) -> bool:
    """Whether it is a product by cuBLAS or attention by cuDNN."""
    return instruction.target.startswith(("__cublas", "__cudnn"))


def is_splash(instruction: Instruction) -> bool:
    """Whether it is a kernel of splash attention on a TPU."""
    return instruction.target == "tpu_custom_call" and bool(first(_SPLASH, instruction.name))


def flops(module: Module, instruction: Instruction, matrix_unit: int = 1) -> int:
    """FLOPs of the matrix products of an instruction, or inside a fusion.

    A matrix unit multiplies whole tiles, which counts for splash attention, that of a TPU.
    """
    if instruction.opcode == "fusion":
        return sum(flops(module, one) for one in module.inside(instruction))
    if instruction.opcode == "dot" or instruction.target.startswith("__cublas"):
        left = instruction.inputs[0][0].sizes
        width = math.prod(left[axis] for axis in _integers(_CONTRACTED, instruction))
        return 2 * width * math.prod(instruction.arrays[0].sizes)
    if instruction.target.startswith("__cudnn$fmha"):
        width = instruction.inputs[0][0].sizes[-1]
        # Products of the size of Q K^T, which the backward pass computes again.
        products = 5 if "Backward" in instruction.target else 2
        return products * 2 * width * math.prod(_integers(_SCORES, instruction))
    if is_splash(instruction):
        return _flops_of_splash(instruction, matrix_unit)
    return 0


def _integers(pattern: re.Pattern[str], instruction: Instruction) -> list[int]:
    return [int(each) for each in re.findall(r"\d+", first(pattern, instruction.attributes))]


def _flops_of_splash(instruction: Instruction, matrix_unit: int) -> int:
    """Of the blocks of scores that are computed: if causal, those on and below the diagonal."""
    arrays = [operand[0] for operand in instruction.inputs if operand]
    # [..., H, T, K] and [..., G, M, K]: the first operands that are not integers.
    queries, keys, *_ = (array for array in arrays if array.dtype in ("bf16", "f16", "f32"))
    products = _SPLASH_PRODUCTS[first(_SPLASH, instruction.name)]
    scores = math.prod(queries.sizes[:-1]) * keys.sizes[-2]
    # Segments of queries and of keys are int32, and the positions of queries if it is causal.
    if sum(array.dtype == "s32" for array in arrays) > 2:
        # The first operand is the block of keys to read next, for each block of the scores.
        blocks = arrays[0].sizes[-2]
        scores = scores * (blocks + 1) // (2 * blocks)
    width = -(-queries.sizes[-1] // matrix_unit) * matrix_unit
    return products * 2 * width * scores


def bytes_moved(module: Module, instruction: Instruction) -> int:
    """Bytes that an instruction reads from device memory and writes to it."""
    if instruction.opcode == "fusion":
        return _bytes_of_fusion(module.inside(instruction))
    if instruction.opcode in _SLICES:
        return 2 * _sum(instruction.arrays)
    if instruction.opcode in _UPDATES:
        return 2 * _sum(instruction.inputs[_UPDATES[instruction.opcode]])
    if instruction.opcode == "copy-start":  # its result lists the destination and the source
        return 2 * _sum(instruction.inputs[0])
    results = instruction.arrays
    if is_library_call(instruction):  # its last result is a workspace
        results = results[:-1] or results
    return _sum(array for arrays in instruction.inputs for array in arrays) + _sum(results)


def _bytes_of_fusion(body: list[Instruction]) -> int:
    by_name = {one.name: one for one in body}

    def written(name: str) -> int:
        one = by_name[name]
        if one.opcode == "tuple":
            return sum(written(operand) for operand in one.operands)
        if one.opcode in ("bitcast", "reshape"):
            return written(one.operands[0])
        if one.opcode in _UPDATES:
            return _sum(one.inputs[_UPDATES[one.opcode]])
        return _sum(one.arrays) if one.opcode != "parameter" else 0

    used = _used(body)
    parameters = [one for one in body if one.opcode == "parameter"]
    read = sum(used.get(one.name, 0.0) * _sum(one.arrays) for one in parameters)
    return round(read) + written(body[-1].name)


def _used(body: list[Instruction]) -> dict[str, float]:
    """The part, up to 1, of each instruction's result that a fusion's result depends on.

    A fusion computes only these elements, so of an operand it reads no others.
    """
    used = {body[-1].name: 1.0}
    for one in reversed(body):
        for operand in dict.fromkeys(one.operands):
            part, is_first = used.get(one.name, 0.0), operand == one.operands[0]
            if is_first and one.opcode in _UPDATES:
                part = 0.0  # it stays where it is
            elif is_first and one.opcode in _SLICES:
                part *= min(1.0, _sum(one.arrays) / max(1, _sum(one.inputs[0])))
            used[operand] = min(1.0, used.get(operand, 0.0) + part)
    return used


def _sum(arrays: Iterable[Array]) -> int:
    return sum(array.bytes for array in arrays)
