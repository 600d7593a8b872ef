"""The time of a compiled step, by the compiler's own estimates.

A TPU's compiler writes an estimate in cycles for every fusion. The instructions are in the order
in which they run, so the estimates are added in that order. The compiler gives none for
collectives: their time is the bytes that each device sends, divided by the bandwidth of the links
of its group (`link_bandwidth`). A synchronous collective stops the computation. One that is split
into a start and a done runs beside the computation, one at a time, and only the done waits.

Not counted: the latency of a message, the host, the input, and copies between HBM and on-chip
memory that the compiler starts early in order to hide them.
"""

from dataclasses import dataclass

from transformer_jax.plan.collectives import collectives_of
from transformer_jax.plan.devices import Device
from transformer_jax.plan.hlo import Instruction, Module


@dataclass(frozen=True)
class Estimate:
    """Seconds of a step on one device; all devices run the same program.

    Attributes:
        seconds: of the whole step.
        computing: the part of `seconds` that is computation.
        waiting: the part of `seconds` that waits for collectives.
        hidden: seconds of collectives that run beside the computation.
        source: where `computing` comes from.
    """

    seconds: float
    computing: float
    waiting: float
    hidden: float
    source: str = "the compiler's estimates"


def link_bandwidth(device: Device, group: int, num_devices: int, bounds: tuple[int, ...]) -> float:
    """Bytes a second that each device can send to a group of its neighbours.

    Args:
        device: the kind of device; its `link` is known.
        group: devices that take part.
        num_devices: in the slice.
        bounds: the slice's sides, such as (2, 4). A side of 16 or more is a ring in a v5e or v6e
            slice; on a shorter side the devices at the ends have one neighbour.

    A group of all devices uses one link for each side of the slice (two if it is a ring). A
    smaller one is assumed to be along one side.
    """
    assert device.link is not None
    links = [2 if side >= 16 else 1 for side in bounds if side > 1] or [1]
    return device.link * (sum(links) if group == num_devices else min(links))


def estimate(
    module: Module, device: Device, num_devices: int, bounds: tuple[int, ...]
) -> Estimate | None:
    """The step's time; None if the compiler gave no estimates (only a TPU's does)."""
    step = _Simulation(module, device, num_devices, bounds)
    computing = step.run(module.entry)
    if not computing or not device.clock:
        return None
    return Estimate(
        seconds=step.now,
        computing=computing / device.clock,
        waiting=step.waiting,
        hidden=max(step.communicating - step.waiting, 0.0),  # rounding can leave less
    )


def roofline(device: Device, flops: float, accessed: float) -> Estimate:
    """A lower bound of a step's time: its FLOPs at the peak, or its bytes at full bandwidth.

    Args:
        device: the kind of device.
        flops: of the step on one device.
        accessed: bytes that the compiled step reads and writes there, loop bodies counted once.

    For devices whose compiler gives no estimates (the roofline model, Williams et al. 2009).
    Collectives are left out, since the links between the devices are unknown.
    """
    seconds = max(flops / device.flops, accessed / device.bandwidth)
    return Estimate(seconds, seconds, 0.0, 0.0, source="a roofline, so at least")


class _Simulation:
    """Simulates the instructions in order; times are in seconds."""

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
        """Runs a computation once; returns its cycles, loops included."""
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
