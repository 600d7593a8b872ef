"""Published memory, speed and bandwidth of accelerators, with their sources."""

from dataclasses import dataclass

GIB = 1 << 30


@dataclass(frozen=True)
class Device:
    """One JAX device.

    Attributes:
        name: as reports show it.
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


def known_device(kind: str) -> Device | None:
    """The entry for a `device_kind`; None if there is none (a CPU, another GPU)."""
    if kind in TPUS:
        return TPUS[kind]
    return next((device for name, device in GPUS.items() if name in kind), None)
