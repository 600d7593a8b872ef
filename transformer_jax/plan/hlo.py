"""A reader for the text of a compiled HLO module (`Compiled.as_text()`, XLA's long form).

It reads what a plan needs: names, result shapes, operands, called computations, and the
attributes as text, in the order of the instructions.
"""

import math
import re
from collections.abc import Iterator
from dataclasses import dataclass

#: Bytes of an element; 4-bit types are stored two to a byte, and rounded up here.
_BYTES = {"f64": 8, "s64": 8, "u64": 8, "c64": 8, "c128": 16, "f32": 4, "s32": 4, "u32": 4}
_BYTES |= {"bf16": 2, "f16": 2, "s16": 2, "u16": 2}

_ARRAY = re.compile(r"\b([a-z]+\d+[a-z0-9]*|pred)\[([\d,]*)\]")
_HEADER = re.compile(r"(ENTRY )?%?([\w.~-]+) .*\{")
_INSTRUCTION = re.compile(r"(?:ROOT )?%?([\w.~-]+) = ")
_OPCODE = re.compile(r"\s*([a-z][\w-]*)\(")
_CALLED = re.compile(r"\b(?:calls|body|to_apply)=%?([\w.~-]+)")
_CYCLES = re.compile(r'"estimated_cycles":"(\d+)"')
_TRIPS = re.compile(r'"known_trip_count":\{"n":"(\d+)"\}')
_PARENTHESIS = re.compile(r"[()]")
_NUMBER = re.compile(r"constant\((-?\d+)\)")


@dataclass(frozen=True)
class Instruction:
    """One line of a computation."""

    name: str
    opcode: str
    arrays: tuple[tuple[str, tuple[int, ...]], ...]  #: (dtype, sizes) of each result
    operands: tuple[str, ...]
    attributes: str  #: all that follows the operands

    @property
    def array_bytes(self) -> tuple[int, ...]:
        """Bytes of each array of the result."""
        return tuple(math.prod(sizes) * _BYTES.get(dtype, 1) for dtype, sizes in self.arrays)

    @property
    def called(self) -> str | None:
        """The computation that a fusion, call, loop or asynchronous start runs."""
        match = _CALLED.search(self.attributes)
        return match[1] if match else None

    @property
    def cycles(self) -> int | None:
        """The compiler's estimate, if it gives one (TPU)."""
        match = _CYCLES.search(self.attributes)
        return int(match[1]) if match else None


@dataclass(frozen=True)
class Module:
    """Computations by name; each a list of instructions in the order they run."""

    computations: dict[str, list[Instruction]]
    entry: str

    def trip_count(self, loop: Instruction) -> int:
        """How often a `while` runs; 1 if that is not known in advance.

        A counted loop compares its counter with a constant. If the text does not state the
        count, this constant is used.
        """
        match = _TRIPS.search(loop.attributes)
        if match:
            return int(match[1])
        condition = re.search(r"condition=%?([\w.~-]+)", loop.attributes)
        body = self.computations.get(condition[1], []) if condition else []
        if body and body[-1].opcode == "compare" and "direction=LT" in body[-1].attributes:
            constants = {i.name: i for i in body if i.opcode == "constant"}
            for operand in body[-1].operands:
                if operand in constants:
                    match = _NUMBER.search("constant" + constants[operand].attributes)
                    return int(match[1]) if match else 1
        return 1


def parse(text: str) -> Module:
    """The module that `text` spells.

    Raises:
        ValueError: it has no ENTRY computation.
    """
    computations: dict[str, list[Instruction]] = {}
    entry, inside = "", ""
    for raw in text.splitlines():
        line = raw.strip()
        if line.startswith("}"):
            inside = ""
        elif not inside:
            match = _HEADER.fullmatch(line)
            if match and "HloModule" not in line:
                inside = match[2]
                computations[inside] = []
                entry = inside if match[1] else entry
        else:
            instruction = _instruction(line)
            if instruction:
                computations[inside].append(instruction)
    if not entry:
        raise ValueError("no ENTRY computation: this is not the text of an HLO module")
    return Module(computations, entry)


def _instruction(line: str) -> Instruction | None:
    match = _INSTRUCTION.match(line)
    if not match:
        return None
    start = match.end()
    # The type: a tuple in parentheses (layouts hold parentheses too), or up to a space.
    end = _closing(line, start) + 1 if line[start] == "(" else line.find(" ", start)
    opcode = _OPCODE.match(line, end)
    if end <= start or not opcode:
        return None
    close = _closing(line, opcode.end() - 1)
    arguments = line[opcode.end() : close]
    rest = line[close + 1 :]
    if opcode[1] == "constant":
        arguments, rest = "", f"({arguments}){rest}"
    return Instruction(
        name=match[1],
        opcode=opcode[1],
        arrays=tuple(
            (dtype, tuple(int(size) for size in sizes.split(",") if size))
            for dtype, sizes in _ARRAY.findall(line[start:end])
        ),
        operands=tuple(re.findall(r"%([\w.~-]+)", arguments)),
        attributes=rest,
    )


def _closing(line: str, start: int) -> int:
    """Index of the parenthesis that closes the one at `start`."""
    depth = 0
    for match in _PARENTHESIS.finditer(line, start):
        depth += 1 if match[0] == "(" else -1
        if depth == 0:
            return match.start()
    return len(line) - 1


def walk(
    module: Module, computation: str = "", times: int = 1
) -> Iterator[tuple[Instruction, int]]:
    """Every instruction that runs, and how often; enters loops and calls, but not fusions."""
    for instruction in module.computations.get(computation or module.entry, []):
        yield instruction, times
        if instruction.called is None:
            continue
        if instruction.opcode == "while":
            yield from walk(module, instruction.called, times * module.trip_count(instruction))
        elif instruction.opcode == "call":
            yield from walk(module, instruction.called, times)
