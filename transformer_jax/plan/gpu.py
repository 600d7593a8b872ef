"""NVIDIA GPUs that XLA's CUDA compiler describes: no GPU and no driver are needed."""

import re
from dataclasses import dataclass

from transformer_jax.errors import UserError
from transformer_jax.plan.devices import Device, Target, describe


@dataclass(frozen=True)
class Gpu:
    """A GPU, and what XLA's compiler asks about it.

    Attributes:
        device: its published numbers.
        capability: major number of the compute capability.
        cores: streaming multiprocessors.
        lanes: float32 units of each.
        clock: GHz.
        shared: bytes of shared memory of a multiprocessor.
        cache: bytes of level 2 cache.
    """

    device: Device
    capability: int
    cores: int
    lanes: int
    clock: float
    shared: int
    cache: int

    @property
    def target_config(self) -> str:
        """XLA's `GpuTargetConfigProto` as text."""
        return f"""
            gpu_device_info {{
              threads_per_block_limit: 1024 threads_per_warp: 32
              shared_memory_per_block: 49152 shared_memory_per_core: {self.shared}
              shared_memory_per_block_optin: {self.shared - 1024}
              threads_per_core_limit: 2048 core_count: {self.cores} fpus_per_core: {self.lanes}
              block_dim_limit_x: 2147483647 block_dim_limit_y: 65535 block_dim_limit_z: 65535
              registers_per_core_limit: 65536 registers_per_block_limit: 65536
              memory_bandwidth: {self.device.bandwidth:.0f} l2_cache_size: {self.cache}
              clock_rate_ghz: {self.clock} device_memory_size: {self.device.memory}
              cuda_compute_capability {{ major: {self.capability} }}
            }}
            platform_name: "CUDA" device_description_str: "{self.device.name}" """


#: Memory, bandwidth, and below what the compiler asks: the files in
#: xla/backends/gpu/target_config/specs of XLA's sources. Dense bfloat16 peaks and NVLink: NVIDIA's
#: data sheets.
A100 = Device("NVIDIA A100", 85_100_068_864, 312e12, 2.03904e12, link=300e9, kind=".*A100.*")
H100 = Device("NVIDIA H100", 84_942_979_072, 989e12, 3.35232e12, link=450e9, kind=".*H100.*")
H200 = Device("NVIDIA H200", 151_397_597_184, 989e12, 4.8e12, link=450e9, kind=".*H200.*")
B200 = Device("NVIDIA B200", 191_514_411_008, 2250e12, 7.67232e12, link=900e9, kind=".*B200.*")

#: By what `--plan_topology` begins with.
NODES = {
    "a100": Gpu(A100, 8, 108, 64, 1.41, 167_936, 41_943_040),
    "h100": Gpu(H100, 9, 132, 128, 1.98, 233_472, 52_428_800),
    "h200": Gpu(H200, 9, 132, 128, 1.98, 233_472, 52_428_800),
    "b200": Gpu(B200, 10, 148, 128, 1.965, 233_472, 132_644_864),
}

#: Cannot be described here.
L4 = Device("NVIDIA L4", 24 * 10**9, 121e12, 0.3e12, kind=".*L4")

#: Bytes a second of each GPU to other nodes, in one direction: one adapter of 400 Gbit/s.
NETWORK = 50e9

#: What JAX's allocator takes of a device unless XLA_PYTHON_CLIENT_MEM_FRACTION says otherwise.
_USABLE = 0.75


def gpu_node(topology: str) -> Target:
    """One node, or equal ones, by name, number of GPUs and of nodes: `h100:8`, `h100:8x2`.

    Raises:
        UserError: the numbers are wrong, or the compiler is missing or refuses the description.
    """
    name, _, text = topology.partition(":")
    if not (match := re.fullmatch(r"([1-8])(?:x([1-9]\d*))?", text)):
        raise UserError(
            f"--plan_topology={topology}: expected {name}:<GPUs>, from 1 to 8 in a node, or "
            f"{name}:<GPUs>x<nodes>, such as h100:8 or h100:8x2"
        )
    gpu, per_node, num_nodes = NODES[name], int(match[1]), int(match[2] or 1)
    devices = describe(
        topology,
        packages=("jax_cuda12_plugin", "jax_cuda13_plugin"),
        missing="XLA's CUDA compiler: pip install jax-cuda13-plugin, with the version of jax, in "
        "an environment of its own",
        platform="cuda",
        target_config=gpu.target_config,
        topology=f"1x{num_nodes}x{per_node}",
    )
    # Without tuning on the device, Triton's products get the smallest tiles, which no run would
    # use. Calls of cuBLAS are closer to what it does.
    options = {
        "xla_gpu_enable_triton_gemm": False,
        # Machine code that never runs needs no optimising. The program is the same without, and
        # compiles in a third of the time.
        "xla_backend_optimization_level": 0,
        "xla_llvm_disable_expensive_passes": True,
    }
    return Target(
        devices,
        gpu.device,
        int(_USABLE * gpu.device.memory),
        "in a node" if num_nodes == 1 else f"in {num_nodes} nodes of {per_node}",
        lambda group: send_rate(gpu.device, per_node, group),
        options,
    )


def send_rate(device: Device, per_node: int, group: int) -> float:
    """Bytes a second that each GPU can send to its group, over NVLink or the adapters of its node.

    A group that is not larger than a node is assumed to be inside one. A ring through several
    nodes enters and leaves each of them once. NCCL makes as many rings as there are adapters, so
    that all of them send.
    """
    return device.link if group <= per_node else min(device.link, NETWORK * per_node)
