"""The communication in a compiled program: collectives by kind, and their bytes."""

import math
import re
from dataclasses import dataclass, replace

from transformer_jax.plan.hlo import Instruction, Module, walk

#: Kind -> how many times a device sends its share (all but one part) of the array in a ring
#: (Patarasuk and Yuan 2009), the minimum; None: it sends the whole array.
_SHARES_SENT = {
    "all-reduce": 2,
    "all-gather": 1,
    "reduce-scatter": 1,
    "all-to-all": 1,
    "ragged-all-to-all": 1,
    "collective-permute": None,
    "collective-broadcast": None,
}


@dataclass(frozen=True)
class Collective:
    """One collective instruction.

    Attributes:
        kind: such as "all-reduce".
        size: bytes of the whole array: an all-gather's result, a reduce-scatter's operand, the
            result of any other.
        group: the number of devices that take part.
    """

    kind: str
    size: int
    group: int

    @property
    def sent(self) -> float:
        """Bytes that each device sends."""
        shares = _SHARES_SENT[self.kind]
        if shares is None:
            return float(self.size)
        return shares * (self.group - 1) / self.group * self.size


def collective(instruction: Instruction, num_devices: int) -> Collective | None:
    """The collective that an instruction is, or starts; None if it is another instruction."""
    kind = instruction.opcode.removesuffix("-start")
    if kind not in _SHARES_SENT:
        return None
    group = 2 if kind == "collective-permute" else group_size(instruction.attributes, num_devices)
    sizes = instruction.array_bytes
    if instruction.opcode != kind:
        # The result of a start lists its operands, then its results, then scalars.
        arrays = [n for n, (_, dims) in zip(sizes, instruction.arrays, strict=True) if dims]
        sizes = tuple(arrays if kind == "all-reduce" else arrays[len(arrays) // 2 :])
    total = sum(sizes) * (group if kind == "reduce-scatter" else 1)
    return Collective(kind, total, group)


def collectives_of(module: Module, instruction: Instruction, num_devices: int) -> list[Collective]:
    """The collectives that an instruction is, starts, or contains as a fusion."""
    called = instruction.called or ""
    instructions = [instruction]
    if instruction.opcode in ("fusion", "async-start"):
        instructions = module.computations.get(called, [])
    candidates = (collective(one, num_devices) for one in instructions)
    result = [one for one in candidates if one and one.group > 1]
    # A TPU's reduce-scatter is an all-reduce, then a slice.
    if "all-reduce-scatter" in called:
        result = [replace(one, kind="reduce-scatter") for one in result]
    return result


def group_size(attributes: str, num_devices: int) -> int:
    """Devices in each of the `replica_groups`, which XLA writes in three ways."""
    _, _, text = attributes.partition("replica_groups=")
    if text.startswith("mesh["):  # mesh['data'=2,'tensor'=4] {'tensor'}
        sizes = dict(re.findall(r"'([^']+)'=(\d+)", text[: text.index("]")]))
        inside = re.match(r"[^{]*\{([^}]*)\}", text)
        named = re.findall(r"'([^']+)'(?::\(\d+\)(\d+))?", inside[1]) if inside else []
        return math.prod(int(part or sizes[axis]) for axis, part in named)
    if text.startswith("["):  # [4,2]<=[8]: four groups of two
        return int(text[1 : text.index("]")].split(",")[-1])
    first = re.match(r"\{\{([\d,]+)\}", text)  # {{0,1},{2,3}}
    return len(first[1].split(",")) if first else num_devices


def by_kind(module: Module, num_devices: int) -> dict[str, tuple[int, int]]:
    """Kind -> (number in a step, sum of their `Collective.size`)."""
    totals: dict[str, tuple[int, int]] = {}
    for instruction, times in walk(module):
        for one in collectives_of(module, instruction, num_devices):
            count, size = totals.get(one.kind, (0, 0))
            totals[one.kind] = (count + times, size + times * one.size)
    return dict(sorted(totals.items()))
