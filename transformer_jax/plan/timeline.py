"""How long a compiled step takes, by the compiler's own estimates.

A TPU's compiler writes its estimate in cycles beside every fusion. The step's instructions stand
in the order they will run, so the estimates are added along that order. The compiler gives none
for collectives: those take the bytes that each device sends over the links that its group has
(`link_bandwidth`). A synchronous collective stops the computation; one that is split into a start
and a done runs beside it, one at a time, and only the done waits.

What is not counted: the latency of a message, the host, the input, and copies between HBM and
on-chip memory that the compiler starts ahead (it counts on hiding them).
"""

from dataclasses import dataclass

from transformer_jax.plan.collectives import collectives_of
from transformer_jax.plan.devices import Device
from transformer_jax.plan.hlo import Instruction, Module


@dataclass(frozen=True)
class Estimate:
    """Seconds of a step on one device, which all run alike.

    Attributes:
        seconds: of the whole step.
        computing: of these, in the compiler's estimates.
        waiting: of these, for collectives that nothing hides.
        hidden: seconds of collectives that run beside the computation.
        source: whose word `computing` is.
    """

    seconds: float
    computing: float
    waiting: float
    hidden: float
    source: str = "the compiler's estimates"


def link_bandwidth(device: Device, group: int, num_devices: int, bounds: tuple[int, ...]) -> float:
    """Bytes a second that each device can send to a group of its neighbours.

    Args:
        device: whose links.
        group: devices that take part.
        num_devices: in the slice.
        bounds: the slice's sides, such as (2, 4). A side of 16 or more is closed to a ring
            in a v5e or v6e slice; in shorter ones the devices at the ends have one neighbour.

    A group of all devices uses one link for each side of the slice (two where it is a ring); a
    smaller one is taken to lie along one side.
    """
    links = [2 if side >= 16 else 1 for side in bounds if side > 1] or [1]
    return device.link * (sum(links) if group == num_devices else min(links))


def estimate(
    module: Module, device: Device, num_devices: int, bounds: tuple[int, ...]
) -> Estimate | None:
    """The step's time; None where the compiler gave no estimates (any but a TPU's)."""
    line = _Line(module, device, num_devices, bounds)
    computing = line.run(module.entry)
    if not computing or not device.clock:
        return None
    return Estimate(
        seconds=line.now,
        computing=computing / device.clock,
        waiting=line.waiting,
        hidden=max(line.communicating - line.waiting, 0.0),  # rounding can leave less
    )


def roofline(device: Device, flops: float, accessed: float) -> Estimate:
    """The least that a step can take: its FLOPs at the peak, or its bytes at full bandwidth.

    Args:
        device: whose published numbers.
        flops: of the step on one device.
        accessed: bytes that the compiled step reads and writes there, loop bodies counted once.

    For devices whose compiler gives no estimates (Williams et al. 2009, the roofline model).
    Collectives are left out, since nothing is known here of what links the devices.
    """
    seconds = max(flops / device.flops, accessed / device.bandwidth)
    return Estimate(seconds, seconds, 0.0, 0.0, source="a roofline, so at least")


class _Line:
    """Where the computation and the links stand, in seconds, as instructions go by."""

    def __init__(
        self, module: Module, device: Device, num_devices: int, bounds: tuple[int, ...]
    ) -> None:
        self._module, self._device = module, device
        self._num_devices, self._bounds = num_devices, bounds
        self.now = 0.0
        self.waiting = 0.0
        self.communicating = 0.0
        self._links_free = 0.0
        self._arrives: dict[str, float] = {}

    def run(self, computation: str) -> int:
        """Runs a computation once; returns the cycles of it, loops and all."""
        total = 0
        for instruction in self._module.computations.get(computation, []):
            called = instruction.called
            if instruction.opcode == "while" and called:
                for _ in range(self._module.trip_count(instruction)):
                    total += self.run(called)
            elif instruction.opcode == "call" and called:
                total += self.run(called)
            elif seconds := self._seconds(instruction):
                self._send(instruction.name, seconds)
                if not instruction.opcode.endswith("-start"):
                    self._wait(instruction.name)
            elif instruction.opcode.endswith("-done"):
                for operand in instruction.operands:
                    self._wait(operand)
            cycles = instruction.cycles or 0
            total += cycles
            self.now += cycles / self._device.clock if self._device.clock else 0.0
        return total

    def _seconds(self, instruction: Instruction) -> float:
        if not self._device.link:
            return 0.0
        seconds = 0.0
        for one in collectives_of(self._module, instruction, self._num_devices):
            seconds += one.sent / link_bandwidth(
                self._device, one.group, self._num_devices, self._bounds
            )
        return seconds

    def _send(self, name: str, seconds: float) -> None:
        self._links_free = max(self._links_free, self.now) + seconds
        self._arrives[name] = self._links_free
        self.communicating += seconds

    def _wait(self, name: str) -> None:
        late = self._arrives.pop(name, self.now) - self.now
        if late > 0:
            self.waiting += late
            self.now += late
