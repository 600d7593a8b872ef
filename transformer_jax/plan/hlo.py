"""A reader for the text of a compiled HLO module (`Compiled.as_text()`, XLA's long form).

It reads what a plan needs, the collectives among it, and leaves the rest of each instruction as
text.
"""

import math
import re
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

COLLECTIVES = {
    *("all-reduce", "all-gather", "reduce-scatter", "all-to-all", "ragged-all-to-all"),
    *("collective-permute", "collective-broadcast"),
}

_NAME = r"%?([\w.~-]+)"
_HEADER = re.compile(rf"(ENTRY )?{_NAME} \(.*\{{")
#: Name, type, opcode, arguments, attributes. No comma follows a parenthesis in a type: T(8,128)}.
_INSTRUCTION = re.compile(rf"(?:ROOT )?{_NAME} = (\S.*?) ([a-z][\w-]*)\((.*?)\)(?=,|$)(.*)")
_ARRAY = re.compile(r"\b([a-z]+\d+[a-z0-9]*|pred)\[([\d,]*)\]")
_BITS = re.compile(r"(\d+)")
_OPERAND = re.compile(r"%([\w.~-]+)")
_CALLED = re.compile(rf"\b(?:calls|body|to_apply)={_NAME}")
_CONDITION = re.compile(rf"\bcondition={_NAME}")
_BRANCHES = re.compile(
    r"\b(?:(?:true|false)_computation=|branch_computations=\{)((?:(?:, )?%[\w.~-]+)+)"
)
_TARGET = re.compile(r'\bcustom_call_target="([^"]*)"')
_CYCLES = re.compile(r'"estimated_cycles":"(\d+)"')
#: The only attribute with line breaks: a few words of JSON about a Pallas kernel.
_KERNEL_METADATA = re.compile(r"kernel_metadata=\{\n.*\n\}")
_TRIPS = re.compile(r'"known_trip_count":\{"n":"(\d+)"\}')


def first(pattern: re.Pattern[str], text: str) -> str:
    """The group of the first match; "" without one."""
    match = pattern.search(text)
    return match[1] if match else ""


class Array(NamedTuple):
    """An array's dtype, as HLO writes it, and sizes."""

    dtype: str
    sizes: tuple[int, ...]

    @property
    def itemsize(self) -> int:
        """Bytes of an element; 4-bit types are stored two to a byte, and rounded up here."""
        return max(1, int(first(_BITS, self.dtype) or 8) // 8)

    @property
    def bytes(self) -> int:
        """Of all elements."""
        return math.prod(self.sizes) * self.itemsize


@dataclass(frozen=True, eq=False)
class Instruction:
    """One line of a computation: `name = type opcode(arguments)attributes`.

    Attributes:
        arrays: the arrays of the result.
        operands: the names of the instructions whose results it takes.
        inputs: the arrays of each operand.
    """

    name: str
    opcode: str
    arguments: str
    attributes: str
    arrays: tuple[Array, ...]
    operands: list[str]
    inputs: tuple[tuple[Array, ...], ...]

    @property
    def called(self) -> str:
        """The computation that a fusion, call, loop or asynchronous start runs, or ""."""
        return first(_CALLED, self.attributes)

    @property
    def target(self) -> str:
        """What a custom call calls; "" for any other instruction."""
        return first(_TARGET, self.attributes)

    @property
    def cycles(self) -> int:
        """The compiler's estimate; 0 if it gives none. A TPU's does."""
        return int(first(_CYCLES, self.attributes) or 0)


@dataclass(frozen=True)
class Module:
    """Computations by name; each a list of instructions in the order they run."""

    computations: dict[str, list[Instruction]]
    entry: str

    def inside(self, instruction: Instruction) -> list[Instruction]:
        """The instructions of the computation that an instruction calls."""
        return self.computations.get(instruction.called, [])

    def entered(self, instruction: Instruction) -> tuple[str, int]:
        """(computation, times) that a loop, call or condition runs; ("", 0) for another.

        Of a condition's branches the one with the most instructions counts.
        """
        if instruction.opcode in ("while", "call"):
            return instruction.called, self.trip_count(instruction)
        if instruction.opcode == "conditional":
            branches = _OPERAND.findall(" ".join(_BRANCHES.findall(instruction.attributes)))
            return max(branches, key=lambda name: len(self.computations[name])), 1
        return "", 0

    def trip_count(self, loop: Instruction) -> int:
        """How often the body of a `while` runs; 1 if that is not known, and for a call.

        A counted loop compares its counter with a constant, which is used where the text does not
        state the count, as that of a TPU's compiler.
        """
        if stated := first(_TRIPS, loop.attributes):
            return int(stated)
        body = self.computations.get(first(_CONDITION, loop.attributes), [])
        if not body or body[-1].opcode != "compare" or "direction=LT" not in body[-1].attributes:
            return 1
        limits = (i for i in body if i.opcode == "constant" and i.name in body[-1].operands)
        return next((int(i.arguments) for i in limits if i.arguments.isdigit()), 1)


def parse(text: str) -> Module:
    """Reads the text of a module.

    Raises:
        ValueError: it has no ENTRY computation.
    """
    computations: dict[str, list[Instruction]] = {}
    entry = ""
    instructions: list[Instruction] = []
    results: dict[str, tuple[Array, ...]] = {}
    for line in map(str.strip, _KERNEL_METADATA.sub("kernel_metadata={}", text).splitlines()):
        if match := _HEADER.fullmatch(line):
            computations[match[2]] = instructions = []
            entry = match[2] if match[1] else entry
        elif match := _INSTRUCTION.match(line):
            name, result, opcode, arguments, attributes = match.groups()
            results[name] = arrays = tuple(
                Array(dtype, tuple(int(size) for size in sizes.split(",") if size))
                for dtype, sizes in _ARRAY.findall(result)
            )
            operands = _OPERAND.findall(arguments)
            inputs = tuple(results.get(operand, ()) for operand in operands)
            found = Instruction(name, opcode, arguments, attributes, arrays, operands, inputs)
            instructions.append(found)
    if not entry:
        raise ValueError("no ENTRY computation: this is not the text of an HLO module")
    return Module(computations, entry)


def walk(module: Module, computation: str = "") -> Iterator[Instruction]:
    """Every instruction, in order and as often as it runs; enters what `entered` names."""
    for instruction in module.computations.get(computation or module.entry, []):
        yield instruction
        inside, times = module.entered(instruction)
        for _ in range(times):
            yield from walk(module, inside)


class Collective(NamedTuple):
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
        """Bytes that each device sends: in a ring, all but its part (Patarasuk and Yuan 2009)."""
        if self.kind.startswith("collective-"):
            return self.size
        turns = 2 if self.kind == "all-reduce" else 1
        return turns * (self.group - 1) / self.group * self.size


def collective(instruction: Instruction, num_devices: int) -> Collective | None:
    """The collective that an instruction is, or starts; None if it is another instruction."""
    kind = instruction.opcode.removesuffix("-start")
    if kind not in COLLECTIVES:
        return None
    group = 2 if kind == "collective-permute" else group_size(instruction.attributes, num_devices)
    arrays = instruction.arrays
    if instruction.opcode != kind:
        # The result of a start lists its operands, then its results, then scalars.
        arrays = tuple(array for array in arrays if array.sizes)
        arrays = arrays if kind == "all-reduce" else arrays[len(arrays) // 2 :]
    parts = group if kind == "reduce-scatter" else 1
    return Collective(kind, parts * sum(array.bytes for array in arrays), group)


def collectives_of(module: Module, instruction: Instruction, num_devices: int) -> list[Collective]:
    """The collectives that an instruction is, starts, or contains as a fusion."""
    has_inside = instruction.opcode in ("fusion", "async-start")
    instructions = module.inside(instruction) if has_inside else [instruction]
    candidates = (collective(one, num_devices) for one in instructions)
    result = [one for one in candidates if one and one.group > 1]
    # A TPU's reduce-scatter is an all-reduce, then a slice.
    if "all-reduce-scatter" in instruction.called:
        result = [one._replace(kind="reduce-scatter") for one in result]
    return result


def group_size(attributes: str, num_devices: int) -> int:
    """Devices in each of the `replica_groups`, which XLA writes in three ways."""
    _, _, text = attributes.partition("replica_groups=")
    if text.startswith("mesh["):  # mesh['data'=2,'tensor'=4] {'tensor'}
        mesh, _, axes = text.partition("{")
        sizes = dict(re.findall(r"'([^']+)'=(\d+)", mesh))
        named = re.findall(r"'([^']+)'(?::\(\d+\)(\d+))?", axes.partition("}")[0])
        return math.prod(int(part or sizes[axis]) for axis, part in named)
    if text.startswith("["):  # [4,2]<=[8]: four groups of two
        return int(text[1 : text.index("]")].split(",")[-1])
    listed = re.match(r"\{\{([\d,]+)\}", text)  # {{0,1},{2,3}}
    return len(listed[1].split(",")) if listed else num_devices


def by_kind(module: Module, num_devices: int) -> dict[str, tuple[int, int]]:
    """Kind -> (number in a step, sum of their `Collective.size`)."""
    counts: Counter[str] = Counter()
    sizes: Counter[str] = Counter()
    for instruction, times in Counter(walk(module)).items():
        for one in collectives_of(module, instruction, num_devices):
            counts[one.kind] += times
            sizes[one.kind] += times * one.size
    return {kind: (counts[kind], sizes[kind]) for kind in sorted(counts)}
