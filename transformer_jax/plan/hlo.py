"""A reader for the text of a compiled HLO module (`Compiled.as_text()`, XLA's long form).

It reads what a plan needs, the collectives among it, and leaves the rest of each instruction as
text.
"""

import math
import re
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import NamedTuple

#: Bytes of an element; 4-bit types are stored two to a byte, and rounded up here.
_BYTES = {"c128": 16}
_BYTES |= dict.fromkeys(("f64", "s64", "u64", "c64"), 8)
_BYTES |= dict.fromkeys(("f32", "s32", "u32"), 4)
_BYTES |= dict.fromkeys(("bf16", "f16", "s16", "u16"), 2)

#: Kind of collective -> how many times a device sends its share (all but one part) of the array in
#: a ring (Patarasuk and Yuan 2009), the minimum; None: it sends the whole array.
_SHARES_SENT = {
    "all-reduce": 2,
    "all-gather": 1,
    "reduce-scatter": 1,
    "all-to-all": 1,
    "ragged-all-to-all": 1,
    "collective-permute": None,
    "collective-broadcast": None,
}

_NAME = r"%?([\w.~-]+)"
_HEADER = re.compile(rf"(ENTRY )?{_NAME} .*\{{")
_INSTRUCTION = re.compile(rf"(?:ROOT )?{_NAME} = (\S.*?) ([a-z][\w-]*)\(")
_PARENTHESIS = re.compile(r"[()]")
_ARRAY = re.compile(r"\b([a-z]+\d+[a-z0-9]*|pred)\[([\d,]*)\]")
_OPERAND = re.compile(r"%([\w.~-]+)")
_CALLED = re.compile(rf"\b(?:calls|body|to_apply)={_NAME}")
_CONDITION = re.compile(rf"\bcondition={_NAME}")
_BRANCHES = re.compile(rf"\b(?:true_computation|false_computation)={_NAME}")
_BRANCH_LIST = re.compile(r"\bbranch_computations=\{([^}]*)\}")
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
        """Bytes of an element."""
        return _BYTES.get(self.dtype, 1)

    @property
    def bytes(self) -> int:
        """Of all elements."""
        return math.prod(self.sizes) * self.itemsize


@dataclass(frozen=True)
class Instruction:
    """One line of a computation: `name = type opcode(arguments)attributes`.

    Attributes:
        inputs: the arrays of each operand.
    """

    name: str
    type: str
    opcode: str
    arguments: str
    attributes: str
    inputs: tuple[tuple["Array", ...], ...] = ()

    @property
    def arrays(self) -> tuple["Array", ...]:
        """The arrays of the result."""
        return tuple(
            Array(dtype, tuple(int(size) for size in sizes.split(",") if size))
            for dtype, sizes in _ARRAY.findall(self.type)
        )

    @property
    def array_bytes(self) -> tuple[int, ...]:
        """Bytes of each array of the result."""
        return tuple(array.bytes for array in self.arrays)

    @property
    def operands(self) -> list[str]:
        """The names of the instructions whose results it takes."""
        return _OPERAND.findall(self.arguments)

    @property
    def called(self) -> str:
        """The computation that a fusion, call, loop or asynchronous start runs, or ""."""
        return first(_CALLED, self.attributes)

    @property
    def branches(self) -> list[str]:
        """The computations of a `conditional`, of which one runs."""
        listed = _OPERAND.findall(first(_BRANCH_LIST, self.attributes))
        return listed or _BRANCHES.findall(self.attributes)

    @property
    def target(self) -> str:
        """What a custom call calls; "" for any other instruction."""
        return first(_TARGET, self.attributes)

    @property
    def cycles(self) -> int | None:
        """The compiler's estimate, if it gives one (TPU)."""
        cycles = first(_CYCLES, self.attributes)
        return int(cycles) if cycles else None


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
        if instruction.opcode in ("while", "call") and instruction.called:
            return instruction.called, self.trip_count(instruction)
        if instruction.opcode == "conditional" and instruction.branches:
            size = {name: len(self.computations.get(name, [])) for name in instruction.branches}
            return max(size, key=lambda name: size[name]), 1
        return "", 0

    def trip_count(self, loop: Instruction) -> int:
        """How often the body of a `while` runs; 1 if that is not known, and for a call.

        A counted loop compares its counter with a constant. If the text does not state the
        count, this constant is used.
        """
        if match := _TRIPS.search(loop.attributes):
            return int(match[1])
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
    entry: str | None = None
    instructions: list[Instruction] | None = None
    results: dict[str, tuple[Array, ...]] = {}
    for raw in _KERNEL_METADATA.sub("kernel_metadata={}", text).splitlines():
        line = raw.strip()
        if line.startswith("}"):
            instructions = None
        elif instructions is not None:
            if match := _INSTRUCTION.match(line):
                end = _closing(line, match.end() - 1)
                name, result, opcode = match.groups()
                arguments, attributes = line[match.end() : end], line[end + 1 :]
                read = Instruction(name, result, opcode, arguments, attributes)
                inputs = tuple(results.get(operand, ()) for operand in read.operands)
                instructions.append(replace(read, inputs=inputs))
                results[name] = read.arrays
        elif (match := _HEADER.fullmatch(line)) and "HloModule" not in line:
            computations[match[2]] = instructions = []
            results = {}
            entry = match[2] if match[1] else entry
    if entry is None:
        raise ValueError("no ENTRY computation: this is not the text of an HLO module")
    return Module(computations, entry)


def _closing(line: str, start: int) -> int:
    """Index of the parenthesis that closes the one at `start`."""
    depth = 0
    for match in _PARENTHESIS.finditer(line, start):
        depth += 1 if match[0] == "(" else -1
        if depth == 0:
            return match.start()
    return len(line) - 1


def walk(
    module: Module, computation: str | None = None, times: int = 1
) -> Iterator[tuple[Instruction, int]]:
    """Every instruction that runs, and how often; enters what `entered` names, but not fusions."""
    for instruction in module.computations.get(computation or module.entry, []):
        yield instruction, times
        inside, count = module.entered(instruction)
        if inside:
            yield from walk(module, inside, times * count)


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
    instructions = [instruction]
    if instruction.opcode in ("fusion", "async-start"):
        instructions = module.inside(instruction)
    candidates = (collective(one, num_devices) for one in instructions)
    result = [one for one in candidates if one and one.group > 1]
    # A TPU's reduce-scatter is an all-reduce, then a slice.
    if "all-reduce-scatter" in instruction.called:
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
