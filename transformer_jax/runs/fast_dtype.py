"""Which operand type this machine multiplies matrices of fastest."""

from typing import Literal

import jax

from transformer_jax.ops.platform import cpu_flags

#: Instructions with which XLA's CPU backend multiplies bfloat16 faster than float32; without
#: them it emulates bfloat16, slowly (`python benchmarks/matmul_forms.py` measures both).
_CPU_FLAGS = {"avx512_bf16", "amx_bf16"}

#: NVIDIA's Ampere, the first with bfloat16 tensor cores.
_CUDA_CAPABILITY = 8.0


def fast_matmul_dtype(device: jax.Device | None = None) -> Literal["float32", "bfloat16"]:
    """bfloat16 where a device has instructions for it, else float32.

    Args:
        device: None = the first of this process, which starts JAX.
    """
    device = device or jax.devices()[0]
    if device.platform == "cpu":
        has_bfloat16 = bool(_CPU_FLAGS & cpu_flags())
    elif device.platform == "gpu":
        # "9.0" with CUDA; ROCm names an architecture, and all of those it supports have it.
        capability = str(getattr(device, "compute_capability", ""))
        is_number = capability.replace(".", "", 1).isdigit()
        has_bfloat16 = not is_number or float(capability) >= _CUDA_CAPABILITY
    else:
        has_bfloat16 = True
    return "bfloat16" if has_bfloat16 else "float32"
