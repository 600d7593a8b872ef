"""The computing time of a compiled step, by part of the model and kind of work.

JAX names every operation (`op_name`) with the path of the Flax modules that it is in. A fusion
has the name of one of its operations, so work that was fused across modules counts for one of them.
"""

import re
from collections import Counter

from transformer_jax.plan.devices import Device
from transformer_jax.plan.hlo import Instruction, Module, walk

#: Patterns for an operation's path. The first that matches counts, so a normalisation inside a
#: mixer belongs to the mixer.
PARTS = (
    ("feed-forward", re.compile(r"/feed_forward/")),
    ("cross-attention", re.compile(r"/cross[/.]")),
    ("mixers", re.compile(r"/mixer/")),
    ("normalisation", re.compile(r"/norm/|_norm/")),
    ("embedding", re.compile(r"embed")),
    ("loss", re.compile(r"Transformer\.loss")),
)
REST = "optimizer, rest"

#: Matrix products; changes of layout; everything else (sums, elementwise operations).
KINDS = ("products", "copies", "other")

_OP_NAME = re.compile(r'op_name="([^"]*)"')
_PRODUCTS = ("dot", "convolution")  # the TPU's compiler writes products as convolutions


def breakdown(module: Module, device: Device) -> dict[str, dict[str, float]]:
    """Part -> kind -> seconds by the compiler's estimates, without collectives.

    Returns:
        Parts that take time, the longest first; {} if the compiler gave no estimates.
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
