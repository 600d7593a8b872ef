"""The devices of a plan: those of this machine, or of a TPU slice described by libtpu."""

import importlib.util
import os
from dataclasses import dataclass
from typing import Any

import jax

from transformer_jax.errors import UserError

GIB = 1 << 30

#: What `--plan_topology` may begin with.
GENERATIONS = ("v4", "v5e", "v5p", "v6e")

#: Keeps libtpu from reading a TPU host's metadata, from locking its chips, from refusing to run
#: beside another plan, and from logging. Without the last two it prints warnings.
_LIBTPU_ENVIRONMENT = {
    "TPU_SKIP_MDS_QUERY": "1",
    "ALLOW_MULTIPLE_LIBTPU_LOAD": "1",
    "TPU_STDERR_LOG_LEVEL": "3",
    "TPU_MIN_LOG_LEVEL": "3",
    "TPU_WORKER_HOSTNAMES": "localhost",
    "TPU_ACCELERATOR_TYPE": "v5litepod-8",
}


@dataclass(frozen=True)
class Device:
    """One JAX device.

    Attributes:
        name: as plans show it.
        memory: bytes of HBM.
        flops: peak bfloat16 operations a second.
        bandwidth: HBM bytes a second.
        clock: cycles a second of the compiler's estimates; None if it gives none.
        link: bytes a second of one link to a neighbour, in one direction; None if unknown.
    """

    name: str
    memory: int
    flops: float
    bandwidth: float
    clock: float | None = None
    link: float | None = None


#: By `jax.Device.device_kind`. Memory, FLOPs and bandwidths: the Cloud TPU pages on each
#: generation and "How to Scale Your Model" (Austin et al. 2025), part 2. The clock is peak FLOPs
#: over the multiply-adds a cycle of the matrix units (v5e: 4 of 128 x 128, so 1.5 GHz); with it
#: the compiler's estimates of an 8192^3 product and of streaming 512 MiB come to 70 to 90 % of
#: the published peaks on all four generations (docs/scale.md).
TPUS = {
    "TPU v4": Device("TPU v4", 32 * GIB, 275e12, 1.228e12, 1.05e9, 45e9),
    "TPU v5 lite": Device("TPU v5e", 16 * GIB, 197e12, 0.819e12, 1.5e9, 45e9),
    "TPU v5": Device("TPU v5p", 95 * GIB, 459e12, 2.765e12, 1.75e9, 90e9),
    "TPU v6 lite": Device("TPU v6e", 32 * GIB, 918e12, 1.64e12, 1.75e9, 90e9),
}

#: Dense bfloat16 peaks from NVIDIA's data sheets; the device itself reports its memory.
GPUS = {
    "H200": Device("NVIDIA H200", 141 * 10**9, 989e12, 4.8e12),
    "H100": Device("NVIDIA H100", 80 * 10**9, 989e12, 3.35e12),
    "A100": Device("NVIDIA A100", 80 * 10**9, 312e12, 2.039e12),
    "L4": Device("NVIDIA L4", 24 * 10**9, 121e12, 0.3e12),
}


@dataclass(frozen=True)
class Target:
    """The devices of a plan.

    Attributes:
        devices: JAX's; those of a described slice can compile programs but not run them.
        bounds: sides of a slice, such as (2, 4); () if the links are unknown.
        device: published numbers of one device; None if unknown.
    """

    devices: list[jax.Device]
    bounds: tuple[int, ...]
    device: Device | None

    @property
    def description(self) -> str:
        """Number and kind, such as "8 x TPU v5e in a slice of 2x4"."""
        first = self.devices[0]
        name = self.device.name if self.device else f"{first.device_kind} ({first.platform})"
        sides = " in a slice of " + "x".join(map(str, self.bounds)) if self.bounds else ""
        return f"{len(self.devices)} x {name}{sides}"

    @property
    def process_devices(self) -> list[jax.Device]:
        """The devices of the first process; on a slice each host runs one."""
        first = self.devices[0].process_index
        return [device for device in self.devices if device.process_index == first]

    @property
    def memory(self) -> int | None:
        """Bytes of memory of one device; None if unknown."""
        if self.device and self.bounds:
            return self.device.memory
        stats = self.devices[0].memory_stats() or {}
        return stats.get("bytes_limit") or (self.device.memory if self.device else None)


def _known_device(kind: str) -> Device | None:
    """The entry for a `jax.Device.device_kind`; None for a CPU or another GPU."""
    if kind in TPUS:
        return TPUS[kind]
    return next((device for name, device in GPUS.items() if name in kind), None)


def this_machine() -> Target:
    """The devices that training uses here."""
    devices = jax.devices()
    return Target(devices, (), _known_device(devices[0].device_kind))


def tpu_slice(topology: str) -> Target:
    """A TPU slice by the name of its generation and its sides, such as `v5e:4x4`.

    libtpu describes the slice, so no TPU is needed; JAX itself runs on the CPU.

    Raises:
        UserError: the name is wrong, libtpu is missing, or it knows no such slice.
    """
    generation, _, sides = topology.partition(":")
    numbers = sides.split("x")
    if generation not in GENERATIONS or not all(n.isdigit() and int(n) > 0 for n in numbers):
        raise UserError(
            f"--plan_topology={topology}: expected <generation>:<side>x<side>, such as v5e:2x4 or "
            f"v5p:2x2x2, with a generation out of {', '.join(GENERATIONS)}"
        )
    jax.config.update("jax_platforms", "cpu")
    # Programs for devices that are not there can be stored but not loaded again.
    jax.config.update("jax_enable_compilation_cache", False)
    for name, value in _LIBTPU_ENVIRONMENT.items():
        os.environ.setdefault(name, value)
    from jax.experimental import topologies

    # A v4 chip has two cores. Cloud TPUs run it as one device (megacore), as JAX does, but
    # libtpu's default is a device for each core. Later chips are always one device.
    options = {"chip_config_name": "megacore"} if generation == "v4" else {}
    try:
        described = topologies.get_topology_desc(platform="tpu", topology_name=topology, **options)
    except Exception as error:
        if importlib.util.find_spec("libtpu") is None:
            raise UserError(
                f"--plan_topology={topology} needs libtpu, the TPU's compiler: ./run setup tpu "
                "(or pip install libtpu), in an environment of its own"
            ) from error
        reason = str(error).splitlines()[0]
        raise UserError(f"--plan_topology={topology}: libtpu says: {reason}") from error
    devices: list[Any] = list(described.devices)
    return Target(devices, tuple(map(int, numbers)), _known_device(devices[0].device_kind))
