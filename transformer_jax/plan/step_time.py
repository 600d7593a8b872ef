"""The time of a compiled step, and the parts of the model it is in.

The TPU compiler estimates the cycles of every fusion. On a GPU, and for attention kernels on a TPU,
the time of each kernel is a roofline (`roofline`). The instructions are in the order in which they
run, so their times are added in that order. The time of a collective is the bytes that each device
sends, divided by the bandwidth of the links of its group (`Target.send_rate`). A synchronous
collective stops the computation. One that is split into a start and a done runs beside the
computation, one at a time, and only the done waits.

Not counted: the latency of a message or of a kernel's launch, the host, the input, and on a TPU
copies between HBM and on-chip memory that the compiler starts early in order to hide them.
"""

import re
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import cache

from transformer_jax.plan.devices import Device, Target
from transformer_jax.plan.hlo import Instruction, Module, collectives_of, first, walk
from transformer_jax.plan.roofline import (
    compiler_seconds,
    is_library_call,
    is_splash,
    kernel_seconds,
    runs_a_kernel,
)

#: Patterns for an operation's `op_name`, the path of the Flax modules that it is in. The first
#: that matches counts, so a normalisation inside a mixer belongs to the mixer. A fusion has the
#: name of one of its operations, so work that was fused across modules counts for one of them.
PARTS = {
    "feed-forward": re.compile(r"/feed_forward/"),
    "cross-attention": re.compile(r"/cross[/.]"),
    "mixers": re.compile(r"/mixer/"),
    "normalisation": re.compile(r"/norm/|_norm/"),
    "loop over layers": re.compile(r"/(en|de)coder/(stack|while)\b"),
    "embedding": re.compile(r"embed"),
    "loss": re.compile(r"Transformer\.loss"),
}
REST = "optimizer, rest"

#: Matrix products; changes of layout; everything else (sums, elementwise operations).
KINDS = ("products", "copies", "other")

_OP_NAME = re.compile(r'op_name="([^"]*)"')
_PRODUCTS = {"dot", "convolution"}  # the TPU's compiler writes products as convolutions
_LAYOUT_ONLY = {"copy", "transpose", "bitcast", "reshape", "parameter", "tuple"}


@dataclass(frozen=True)
class StepTime:
    """Seconds of a step on one device; all devices run the same program.

    Attributes:
        seconds: of the whole step.
        computing: the part of `seconds` that is computation.
        waiting: the part of `seconds` that waits for collectives.
        hidden: seconds of collectives that run beside the computation.
        parts: `computing` by part of the model and kind of work.
        source: where `computing` comes from.
        kernels: how many the GPU runs; None on a TPU.
        computing_by_compiler: `computing` with the compiler's own estimates of the kernels for
            which it gives one; None if it gives none, or if `computing` is that already.
    """

    seconds: float
    computing: float
    waiting: float = 0.0
    hidden: float = 0.0
    parts: dict[str, dict[str, float]] = field(default_factory=dict)
    source: str = "the compiler's estimates"
    kernels: int | None = None
    computing_by_compiler: float | None = None


#: An instruction -> seconds of computing.
Seconds = Callable[[Instruction], float]


def estimate(module: Module, target: Target) -> StepTime | None:
    """The step's time; None if the device is unknown or its compiler gave no estimates."""
    device = target.device
    if device is None:
        return None
    seconds = _seconds(module, device)
    step = _Simulation(module, target, seconds)
    step.run(module.entry)
    if not step.computing:
        return None
    hidden = max(step.communicating - step.waiting, 0.0)  # rounding can leave less
    parts = computing_by_part(module, seconds)
    time = StepTime(step.now, step.computing, step.waiting, hidden, parts)
    if device.clock:
        return time
    return replace(
        time,
        source="a roofline of each kernel",
        kernels=sum(times for one, times in walk(module) if runs_a_kernel(one)),
        computing_by_compiler=_by_compiler(module, seconds),
    )


def _seconds(module: Module, device: Device) -> Seconds:
    if clock := device.clock:
        return lambda instruction: (
            kernel_seconds(module, instruction, device)
            if is_splash(instruction)
            else (instruction.cycles or 0) / clock
        )
    return cache(lambda instruction: kernel_seconds(module, instruction, device))


def _by_compiler(module: Module, seconds: Seconds) -> float | None:
    kernels = [(one, times) for one, times in walk(module) if runs_a_kernel(one)]
    given = {one: compiler_seconds(one) for one, _ in kernels}
    if all(estimate is None for estimate in given.values()):
        return None
    return sum(
        times * (seconds(one) if (own := given[one]) is None else own) for one, times in kernels
    )


def computing_by_part(module: Module, seconds: Seconds) -> dict[str, dict[str, float]]:
    """Part of the model -> kind of work -> seconds, without collectives; the longest part first."""
    parts: dict[str, dict[str, float]] = {}
    for instruction, times in walk(module):
        if time := seconds(instruction):
            path = first(_OP_NAME, instruction.attributes)
            part = next((part for part, pattern in PARTS.items() if pattern.search(path)), REST)
            kinds = parts.setdefault(part, dict.fromkeys(KINDS, 0.0))
            kinds[_kind(module, instruction)] += time * times
    return dict(sorted(parts.items(), key=lambda item: -sum(item[1].values())))


def _kind(module: Module, instruction: Instruction) -> str:
    inside = module.inside(instruction) if instruction.opcode == "fusion" else []
    opcodes = {one.opcode for one in inside}
    if instruction.opcode in _LAYOUT_ONLY or (opcodes and opcodes <= _LAYOUT_ONLY):
        return "copies"
    is_kernel = is_library_call(instruction) or is_splash(instruction)
    if is_kernel or (opcodes | {instruction.opcode}) & _PRODUCTS:
        return "products"
    return "other"


class _Simulation:
    """Goes through the instructions in order and adds up their times, in seconds."""

    def __init__(self, module: Module, target: Target, seconds: Seconds) -> None:
        self._module, self._target, self._seconds = module, target, seconds
        self.now = 0.0
        self.computing = 0.0
        self.waiting = 0.0
        self.communicating = 0.0
        self._links_free = 0.0
        self._arrivals: dict[str, float] = {}

    def run(self, computation: str) -> None:
        """Runs a computation once, with the loops and calls in it."""
        for instruction in self._module.computations.get(computation, []):
            inside, count = self._module.entered(instruction)
            if inside:
                for _ in range(count):
                    self.run(inside)
            elif seconds := self._sending(instruction):
                self._links_free = max(self._links_free, self.now) + seconds
                self._arrivals[instruction.name] = self._links_free
                self.communicating += seconds
                if not instruction.opcode.endswith("-start"):
                    self._wait(instruction.name)
            elif instruction.opcode.endswith("-done"):
                for operand in instruction.operands:
                    self._wait(operand)
            seconds = self._seconds(instruction)
            self.computing += seconds
            self.now += seconds

    def _sending(self, instruction: Instruction) -> float:
        devices, rate = len(self._target.devices), self._target.send_rate
        if rate is None:
            return 0.0
        return sum(
            one.sent / bandwidth
            for one in collectives_of(self._module, instruction, devices)
            if (bandwidth := rate(one.group))
        )

    def _wait(self, name: str) -> None:
        late = self._arrivals.pop(name, self.now) - self.now
        if late > 0:
            self.waiting += late
            self.now += late
