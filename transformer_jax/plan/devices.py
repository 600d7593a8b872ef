"""The devices of a plan: published numbers of one, their number, and how they are joined."""

import importlib.util
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import jax

from transformer_jax.errors import UserError, as_user_error

GIB = 1 << 30


@dataclass(frozen=True)
class Device:
    """One JAX device.

    Attributes:
        name: as plans show it.
        memory: bytes of device memory.
        flops: peak bfloat16 operations a second, dense.
        bandwidth: bytes of device memory a second.
        clock: cycles a second of the compiler's estimates; None if it gives no cycles.
        link: bytes a second of one link to a neighbour (TPU), or of all links to the switch of the
            node (GPU), in one direction; 0 if unknown.
        matrix_unit: rows and columns of a matrix unit (TPU), which computes whole tiles.
        kind: a pattern for `jax.Device.device_kind`.
    """

    name: str
    memory: int
    flops: float
    bandwidth: float
    clock: float | None = None
    link: float = 0.0
    matrix_unit: int = 1
    kind: str = ""


@dataclass(frozen=True)
class Target:
    """The devices of a plan.

    Attributes:
        devices: JAX's; those that are only described can compile programs but not run them.
        device: published numbers of one device; None if unknown.
        memory: bytes of one device that a run can use; None if unknown.
        place: how the devices are joined, such as "in a slice of 2x4"; "" if unknown.
        send_rate: number of devices in a group -> bytes a second that each can send to the others
            of its group; 0 if unknown.
        options: passed to the compiler of every program.
    """

    devices: list[jax.Device]
    device: Device | None = None
    memory: int | None = None
    place: str = ""
    send_rate: Callable[[int], float] = lambda group: 0.0
    options: Mapping[str, Any] = field(default_factory=dict)

    @property
    def description(self) -> str:
        """Number and kind, such as "8 x TPU v5e in a slice of 2x4"."""
        first = self.devices[0]
        name = self.device.name if self.device else f"{first.device_kind} ({first.platform})"
        return f"{len(self.devices)} x {name} {self.place}".rstrip()


def describe(name: str, *, packages: Sequence[str], missing: str, **options: Any) -> list[Any]:
    """JAX devices that need not exist here, as their compiler describes them.

    Args:
        name: the value of `--plan_topology`, for messages.
        packages: modules of which their compiler is one.
        missing: what to install where there is none of them.
        options: of `get_topology_desc`.

    Raises:
        UserError: the compiler is missing, or knows no such devices.
    """
    from jax.experimental import topologies

    if not any(map(importlib.util.find_spec, packages)):
        raise UserError(f"--plan_topology={name} needs {missing}")
    with as_user_error(f"--plan_topology={name}: its compiler says:", Exception):
        return list(topologies.get_topology_desc(**options).devices)
