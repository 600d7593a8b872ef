"""Where the computing time of a compiled step goes: by the module that asked for it, and the work.

Modules stand in the name that JAX gives every operation (`op_name`), with the path of the Flax
modules in it. A fusion has the name of one of its operations, so what the compiler fused across
modules counts as one of them.
"""

import re
from collections import Counter

from transformer_jax.plan.devices import Device
from transformer_jax.plan.hlo import Instruction, Module, walk

#: What is looked for in an operation's path, the first that is found: a normalisation inside a
#: mixer is the mixer's.
PARTS = (
    ("feed-forward", re.compile(r"/feed_forward/")),
    ("cross-attention", re.compile(r"/cross[/.]")),
    ("mixers", re.compile(r"/mixer/")),
    ("normalisation", re.compile(r"/norm/|_norm/")),
    ("embedding", re.compile(r"embed")),
    ("loss", re.compile(r"Transformer\.loss")),
)
REST = "optimizer, rest"

#: Products of matrices; moving arrays into another layout; all else (sums, elementwise).
KINDS = ("products", "copies", "other")

_OP_NAME = re.compile(r'op_name="([^"]*)"')
_PRODUCTS = ("dot", "convolution")  # TPU's compiler writes a product as a convolution


def breakdown(module: Module, device: Device) -> dict[str, dict[str, float]]:
    """Part -> kind -> seconds of computing, by the compiler's estimates; collectives are not in it.

    Returns:
        Parts that take time, the longest first; {} where the compiler gave no estimates.
    """
    if not device.clock:
        return {}
    cycles: dict[str, Counter[str]] = {}
    for instruction, times in walk(module):
        if instruction.cycles:
            kinds = cycles.setdefault(_part(instruction), Counter())
            kinds[_kind(module, instruction)] += instruction.cycles * times
    return {
        part: {kind: kinds[kind] / device.clock for kind in KINDS}
        for part, kinds in sorted(cycles.items(), key=lambda item: -item[1].total())
    }


def _part(instruction: Instruction) -> str:
    match = _OP_NAME.search(instruction.attributes)
    path = match[1] if match else ""
    return next((part for part, pattern in PARTS if pattern.search(path)), REST)


def _kind(module: Module, instruction: Instruction) -> str:
    if instruction.opcode in ("copy", "transpose"):
        return "copies"
    inside = module.computations.get(instruction.called or "", [])
    opcodes = {instruction.opcode, *(i.opcode for i in inside)}
    return "products" if opcodes.intersection(_PRODUCTS) else "other"
