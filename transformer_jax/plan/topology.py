"""The devices of a plan: this machine's, or those of a TPU slice that is not at hand."""

import os
from dataclasses import dataclass
from typing import Any

import jax

from transformer_jax.errors import UserError
from transformer_jax.plan.devices import Device, known_device

#: What `--plan_topology` may begin with.
GENERATIONS = ("v4", "v5e", "v5p", "v6e")


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
    def text(self) -> str:
        """Number and kind, as reports show them."""
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


def this_machine() -> Target:
    """The devices that training uses here."""
    devices = jax.devices()
    return Target(devices, (), known_device(devices[0].device_kind))


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
    # On a TPU host, libtpu must not read the host's metadata, lock its chips, or refuse to run
    # beside another plan.
    jax.config.update("jax_platforms", "cpu")
    # Programs for devices that are not there can be stored but not loaded again.
    jax.config.update("jax_enable_compilation_cache", False)
    os.environ.setdefault("TPU_SKIP_MDS_QUERY", "1")
    os.environ.setdefault("ALLOW_MULTIPLE_LIBTPU_LOAD", "1")
    os.environ.setdefault("TPU_STDERR_LOG_LEVEL", "3")
    os.environ.setdefault("TPU_MIN_LOG_LEVEL", "3")
    # Without these libtpu prints warnings, although the topology's name is all that it needs.
    os.environ.setdefault("TPU_WORKER_HOSTNAMES", "localhost")
    os.environ.setdefault("TPU_ACCELERATOR_TYPE", "v5litepod-8")
    from jax.experimental import topologies

    # A v4 chip has two cores. Cloud TPUs run it as one device (megacore), as JAX does, but
    # libtpu's default is a device for each core. Later chips are always one device.
    options = {"chip_config_name": "megacore"} if generation == "v4" else {}
    try:
        described = topologies.get_topology_desc(platform="tpu", topology_name=topology, **options)
    except Exception as error:
        if not has_libtpu():
            raise UserError(
                f"--plan_topology={topology} needs libtpu, the TPU's compiler: ./run setup tpu "
                "(or pip install libtpu), in an environment of its own"
            ) from error
        reason = str(error).splitlines()[0]
        raise UserError(f"--plan_topology={topology}: libtpu says: {reason}") from error
    devices: list[Any] = list(described.devices)
    return Target(devices, tuple(map(int, numbers)), known_device(devices[0].device_kind))


def has_libtpu() -> bool:
    """Whether the TPU's compiler is installed; imports nothing."""
    import importlib.util

    return importlib.util.find_spec("libtpu") is not None
