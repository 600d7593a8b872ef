"""The TPU compiler's estimates of two operations, beside the published peaks of each generation.

    JAX_PLATFORMS=cpu TPU_SKIP_MDS_QUERY=1 python benchmarks/tpu_estimates.py

Needs libtpu but no TPU. The times of a plan depend on these estimates: if one were above the
published peak, the clock or the reading of the estimates would be wrong.
"""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax.sharding import SingleDeviceSharding

from transformer_jax.plan.hlo import parse, walk
from transformer_jax.plan.tpu import tpu_slice

SLICES = ("v4:2x2x1", "v5e:2x4", "v5p:2x2x1", "v6e:2x4")
SIZE = 8192  # of the square matrices
ELEMENTS = 1 << 26  # of the vector that is read and written, in float32


def estimated_cycles(
    function: Callable[..., jax.Array], *shapes: tuple[tuple[int, ...], Any], device: jax.Device
) -> int:
    """The compiler's estimate for a function of arrays of these shapes and dtypes."""
    sharding = SingleDeviceSharding(device)
    arguments = [jax.ShapeDtypeStruct(s, dtype, sharding=sharding) for s, dtype in shapes]
    module = parse(jax.jit(function).lower(*arguments).compile().as_text())
    return sum(instruction.cycles for instruction in walk(module))


def main() -> None:
    """Prints a row for each generation."""
    print("device          product   of peak    stream   of peak")
    for name in SLICES:
        target = tpu_slice(name)
        device, known = target.devices[0], target.device
        matrix = ((SIZE, SIZE), jnp.bfloat16)
        product = estimated_cycles(lambda a, b: a @ b, matrix, matrix, device=device) / known.clock
        vector = ((ELEMENTS,), jnp.float32)
        stream = estimated_cycles(lambda a: a * 2.0, vector, device=device) / known.clock
        flops = 2 * SIZE**3 / product
        bandwidth = 2 * 4 * ELEMENTS / stream
        print(
            f"{known.name:<14}{1e3 * product:6.2f} ms {100 * flops / known.flops:6.0f} % "
            f"{1e3 * stream:8.2f} ms {100 * bandwidth / known.bandwidth:6.0f} %"
        )


if __name__ == "__main__":
    main()
