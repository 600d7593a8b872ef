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
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cache

from transformer_jax.plan.devices import Device, Target
from transformer_jax.plan.hlo import Instruction, Module, collectives_of, first, walk
from transformer_jax.plan.roofline import (
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
        kernels: how many the GPU runs; None on a TPU, whose compiler estimates `computing`.
    """

    seconds: float
    computing: float
    waiting: float = 0.0
    hidden: float = 0.0
    parts: dict[str, dict[str, float]] = field(default_factory=dict)
    kernels: int | None = None


#: An instruction -> seconds of computing.
Seconds = Callable[[Instruction], float]


def estimate(module: Module, target: Target) -> StepTime | None:
    """The step's time; None if the device is unknown or its compiler gave no estimates."""
    device, num_devices, send_rate = target.device, len(target.devices), target.send_rate
    if device is None:
        return None
    seconds = cache(lambda instruction: _seconds(module, instruction, device))
    computing = waiting = communicating = links_free = 0.0  # now is computing + waiting
    arrivals: dict[str, float] = {}
    for one in walk(module):
        arrived: list[str] = []  # collectives whose results are needed now
        sent = collectives_of(module, one, num_devices)
        if sending := sum(each.sent / rate for each in sent if (rate := send_rate(each.group))):
            # The links send one collective after the other.
            links_free = max(links_free, computing + waiting) + sending
            communicating += sending
            arrivals[one.name] = links_free
            arrived = [] if one.opcode.endswith("-start") else [one.name]
        elif one.opcode.endswith("-done"):
            arrived = one.operands
        for name in arrived:
            waiting += max(arrivals.pop(name, 0.0) - (computing + waiting), 0.0)
        computing += seconds(one)
    if not computing:
        return None
    hidden = max(communicating - waiting, 0.0)  # rounding can leave less
    kernels = None if device.clock else sum(map(runs_a_kernel, walk(module)))
    parts = computing_by_part(module, seconds)
    return StepTime(computing + waiting, computing, waiting, hidden, parts, kernels)


def _seconds(module: Module, instruction: Instruction, device: Device) -> float:
    """Of computing; by the compiler's cycles where it gives them."""
    if device.clock and not is_splash(instruction):
        return instruction.cycles / device.clock
    return kernel_seconds(module, instruction, device)


def computing_by_part(module: Module, seconds: Seconds) -> dict[str, dict[str, float]]:
    """Part of the model -> kind of work -> seconds, without collectives; the longest part first."""
    parts: dict[str, dict[str, float]] = {}
    for instruction, times in Counter(walk(module)).items():
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
