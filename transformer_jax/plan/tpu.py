"""TPU slices that libtpu, the TPU's compiler, describes: no TPU is needed."""

import os

from transformer_jax.errors import UserError
from transformer_jax.plan.devices import GIB, Device, Target, describe

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

#: By what `--plan_topology` begins with. Memory, FLOPs and bandwidths: the Cloud TPU pages on each
#: generation and "How to Scale Your Model" (Austin et al. 2025), part 2. The clock is peak FLOPs
#: over the multiply-adds a cycle of the matrix units (v5e: 4 of 128 x 128, so 1.5 GHz); with it
#: the compiler's estimates of an 8192^3 product and of streaming 512 MiB come to 70 to 90 % of
#: the published peaks on all four generations (docs/scale.md).
TPUS = {
    "v4": Device("TPU v4", 32 * GIB, 275e12, 1.228e12, 1.05e9, 45e9, 128, "TPU v4"),
    "v5e": Device("TPU v5e", 16 * GIB, 197e12, 0.819e12, 1.5e9, 45e9, 128, "TPU v5 lite"),
    "v5p": Device("TPU v5p", 95 * GIB, 459e12, 2.765e12, 1.75e9, 90e9, 128, "TPU v5"),
    "v6e": Device("TPU v6e", 32 * GIB, 918e12, 1.64e12, 1.75e9, 90e9, 256, "TPU v6 lite"),
}


def tpu_slice(topology: str) -> Target:
    """A TPU slice by the name of its generation and its sides, such as `v5e:4x4`.

    Raises:
        UserError: the sides are wrong, libtpu is missing, or it knows no such slice.
    """
    generation, _, text = topology.partition(":")
    numbers = text.split("x")
    if not all(number.isdigit() and int(number) > 0 for number in numbers):
        raise UserError(
            f"--plan_topology={topology}: expected {generation}:<side>x<side>, such as v5e:2x4 or "
            "v5p:2x2x2"
        )
    for name, value in _LIBTPU_ENVIRONMENT.items():
        os.environ.setdefault(name, value)
    # A v4 chip has two cores. Cloud TPUs run it as one device (megacore), as JAX does, but
    # libtpu's default is a device for each core. Later chips are always one device.
    options = {"chip_config_name": "megacore"} if generation == "v4" else {}
    devices = describe(
        topology,
        packages=("libtpu",),
        missing="libtpu, the TPU's compiler: ./run setup tpu (or pip install libtpu), in an "
        "environment of its own",
        platform="tpu",
        topology_name=topology,
        **options,
    )
    device = TPUS[generation]
    sides = tuple(map(int, numbers))
    return Target(
        devices,
        device,
        device.memory,
        f"in a slice of {text}",
        lambda group: link_bandwidth(device, sides, group, len(devices)),
    )


def link_bandwidth(device: Device, sides: tuple[int, ...], group: int, count: int) -> float:
    """Bytes a second that each of `count` devices can send to its group; 0 if unknown.

    A group of all devices uses one link for each side of the slice. It uses two for a side of 16
    or more, which is a ring in a v5e or v6e slice; on a shorter side the devices at the ends have
    one neighbour. A smaller group is assumed to be along one side.
    """
    links = [2 if side >= 16 else 1 for side in sides if side > 1] or [1]
    return device.link * (sum(links) if group == count else min(links))
