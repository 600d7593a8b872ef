"""The time of a compiled step by the compiler's own estimates, and the parts of the model it is in.

A TPU's compiler writes an estimate in cycles for every fusion. The instructions are in the order
in which they run, so the estimates are added in that order. The compiler gives none for
collectives: their time is the bytes that each device sends, divided by the bandwidth of the links
of its group (`link_bandwidth`). A synchronous collective stops the computation. One that is split
into a start and a done runs beside the computation, one at a time, and only the done waits.

Not counted: the latency of a message, the host, the input, and copies between HBM and on-chip
memory that the compiler starts early in order to hide them.
"""

import re
from collections import Counter
from dataclasses import dataclass, field

from transformer_jax.plan.devices import Device, Target
from transformer_jax.plan.hlo import Instruction, Module, collectives_of, walk

#: Patterns for an operation's `op_name`, the path of the Flax modules that it is in. The first
#: that matches counts, so a normalisation inside a mixer belongs to the mixer. A fusion has the
#: name of one of its operations, so work that was fused across modules counts for one of them.
PARTS = {
    "feed-forward": re.compile(r"/feed_forward/"),
    "cross-attention": re.compile(r"/cross[/.]"),
    "mixers": re.compile(r"/mixer/"),
    "normalisation": re.compile(r"/norm/|_norm/"),
    "embedding": re.compile(r"embed"),
    "loss": re.compile(r"Transformer\.loss"),
}
REST = "optimizer, rest"

#: Matrix products; changes of layout; everything else (sums, elementwise operations).
KINDS = ("products", "copies", "other")

_OP_NAME = re.compile(r'op_name="([^"]*)"')
_PRODUCTS = {"dot", "convolution"}  # the TPU's compiler writes products as convolutions


@dataclass(frozen=True)
class StepTime:
    """Seconds of a step on one device; all devices run the same program.

    Attributes:
        seconds: of the whole step.
        computing: the part of `seconds` that is computation.
        waiting: the part of `seconds` that waits for collectives.
        hidden: seconds of collectives that run beside the computation.
        parts: `computing` by part of the model and kind of work; {} if unknown.
        source: where `computing` comes from.
    """

    seconds: float
    computing: float
    waiting: float = 0.0
    hidden: float = 0.0
    parts: dict[str, dict[str, float]] = field(default_factory=dict)
    source: str = "the compiler's estimates"


def estimate(module: Module, target: Target) -> StepTime | None:
    """The step's time; None if the device or the compiler's estimates are unknown (not a TPU)."""
    if target.device is None or not target.device.clock:
        return None
    step = _Simulation(module, target, target.device.clock)
    step.run(module.entry)
    if not step.computing:
        return None
    hidden = max(step.communicating - step.waiting, 0.0)  # rounding can leave less
    parts = computing_by_part(module, target.device.clock)
    return StepTime(step.now, step.computing, step.waiting, hidden, parts)


def roofline(device: Device, flops: float, accessed: float) -> StepTime:
    """A lower bound of a step's time: its FLOPs at the peak, or its bytes at full bandwidth.

    For devices whose compiler gives no estimates (the roofline model, Williams et al. 2009).
    Collectives are left out, since the links between the devices are unknown.

    Args:
        device: the kind of device.
        flops: of the step on one device.
        accessed: bytes that the compiled step reads and writes there, loop bodies counted once.
    """
    seconds = max(flops / device.flops, accessed / device.bandwidth)
    return StepTime(seconds, seconds, source="a roofline, so at least")


def computing_by_part(module: Module, clock: float) -> dict[str, dict[str, float]]:
    """Part of the model -> kind of work -> seconds, without collectives; the longest part first."""
    cycles: dict[str, Counter[str]] = {}
    for instruction, times in walk(module):
        if instruction.cycles:
            match = _OP_NAME.search(instruction.attributes)
            path = match[1] if match else ""
            part = next((part for part, pattern in PARTS.items() if pattern.search(path)), REST)
            kinds = cycles.setdefault(part, Counter())
            kinds[_kind(module, instruction)] += instruction.cycles * times
    return {
        part: {kind: kinds[kind] / clock for kind in KINDS}
        for part, kinds in sorted(cycles.items(), key=lambda item: -item[1].total())
    }


def _kind(module: Module, instruction: Instruction) -> str:
    if instruction.opcode in ("copy", "transpose"):
        return "copies"
    inside = module.computations.get(instruction.called or "", [])
    opcodes = {instruction.opcode, *(i.opcode for i in inside)}
    return "products" if opcodes & _PRODUCTS else "other"


def link_bandwidth(target: Target, group: int) -> float:
    """Bytes a second that each device can send to a group of its neighbours; 0 if unknown.

    A group of all devices uses one link for each side of the slice. It uses two for a side of 16
    or more, which is a ring in a v5e or v6e slice; on a shorter side the devices at the ends have
    one neighbour. A smaller group is assumed to be along one side.
    """
    if target.device is None or target.device.link is None:
        return 0.0
    links = [2 if side >= 16 else 1 for side in target.bounds if side > 1] or [1]
    return target.device.link * (sum(links) if group == len(target.devices) else min(links))


class _Simulation:
    """Goes through the instructions in order and adds up their times, in seconds."""

    def __init__(self, module: Module, target: Target, clock: float) -> None:
        self._module, self._target, self._clock = module, target, clock
        self.now = 0.0
        self.computing = 0.0
        self.waiting = 0.0
        self.communicating = 0.0
        self._links_free = 0.0
        self._arrivals: dict[str, float] = {}

    def run(self, computation: str) -> None:
        """Runs a computation once, with the loops and calls in it."""
        for instruction in self._module.computations.get(computation, []):
            if instruction.opcode in ("while", "call") and instruction.called:
                for _ in range(self._module.trip_count(instruction)):
                    self.run(instruction.called)
            elif seconds := self._sending(instruction):
                self._links_free = max(self._links_free, self.now) + seconds
                self._arrivals[instruction.name] = self._links_free
                self.communicating += seconds
                if not instruction.opcode.endswith("-start"):
                    self._wait(instruction.name)
            elif instruction.opcode.endswith("-done"):
                for operand in instruction.operands:
                    self._wait(operand)
            seconds = (instruction.cycles or 0) / self._clock
            self.computing += seconds
            self.now += seconds

    def _sending(self, instruction: Instruction) -> float:
        devices = len(self._target.devices)
        return sum(
            one.sent / bandwidth
            for one in collectives_of(self._module, instruction, devices)
            if (bandwidth := link_bandwidth(self._target, one.group))
        )

    def _wait(self, name: str) -> None:
        late = self._arrivals.pop(name, self.now) - self.now
        if late > 0:
            self.waiting += late
            self.now += late
