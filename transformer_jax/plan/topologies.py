"""Where a plan's devices come from: this machine, or a description by its compiler."""

import re

import jax

from transformer_jax.errors import UserError
from transformer_jax.plan.devices import Target
from transformer_jax.plan.gpu import L4, NODES, gpu_node
from transformer_jax.plan.tpu import TPUS, tpu_slice


def described(topology: str) -> Target:
    """Devices that need not exist here, such as `v5e:4x4` or `h100:8`; JAX itself runs on the CPU.

    Raises:
        UserError: the name is wrong, or the compiler is missing or knows no such devices.
    """
    name, _, rest = topology.partition(":")
    if name not in {*TPUS, *NODES} or not rest:
        raise UserError(
            f"--plan_topology={topology}: expected a TPU slice such as v5e:2x4 or GPUs such as "
            f"h100:8, with a name out of {', '.join([*TPUS, *NODES])}"
        )
    jax.config.update("jax_platforms", "cpu")
    # Programs for devices that are not there can be stored but not loaded again.
    jax.config.update("jax_enable_compilation_cache", False)
    return tpu_slice(topology) if name in TPUS else gpu_node(topology)


def this_machine() -> Target:
    """The devices that training uses here."""
    devices = jax.devices()
    known = (*TPUS.values(), *(gpu.device for gpu in NODES.values()), L4)
    device = next((each for each in known if re.fullmatch(each.kind, devices[0].device_kind)), None)
    stats = jax.local_devices()[0].memory_stats() or {}  # those of other processes have none here
    memory = stats.get("bytes_limit") or (device.memory if device else None)
    return Target(devices, device, memory, send_rate=lambda _: device.link if device else 0.0)
