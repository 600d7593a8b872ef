"""The forms of a matrix product that XLA runs fast on this CPU, and the cost of freed memory.

    python benchmarks/matmul_forms.py

Shows the reasons for `ops/matmul.py` and `commands/host_memory.py`. Milliseconds, best of 10.
"""

import subprocess
import sys
import time
from collections.abc import Callable

import jax
import jax.numpy as jnp

from transformer_jax.commands.host_memory import keep_freed_memory
from transformer_jax.ops.matmul import product, transposed

SIZES = [(2048, 256, 256), (2048, 256, 1024), (2048, 1024, 256), (1904, 256, 8000)]


def best_ms(function: Callable[..., jax.Array], *arrays: jax.Array) -> float:
    """Milliseconds of the fastest of ten calls, after two to warm up."""
    compiled = jax.jit(function)
    times = []
    for _ in range(12):
        began = time.perf_counter()
        compiled(*arrays).block_until_ready()
        times.append(time.perf_counter() - began)
    return 1e3 * min(times[2:])


def table() -> None:
    """Prints a row for each size."""
    print("| M, K, N | f32 | bf16 | bf16 -> bf16 | f32 x w.T | bf16 x w.T | ops/matmul.py |")
    print("| --- | --- | --- | --- | --- | --- | --- |")
    for rows, inner, columns in SIZES:
        x, w = jnp.ones((rows, inner)), jnp.ones((inner, columns))
        x_low, w_low = x.astype(jnp.bfloat16), w.astype(jnp.bfloat16)
        dy, dy_low = jnp.ones((rows, columns)), jnp.ones((rows, columns), jnp.bfloat16)
        times = [
            best_ms(jnp.matmul, x, w),
            best_ms(product, x_low, w_low),
            best_ms(jnp.matmul, x_low, w_low),
            best_ms(lambda dy, w: dy @ w.T, dy, w),
            best_ms(
                lambda dy, w: jnp.matmul(dy, w.T, preferred_element_type=jnp.float32),
                dy_low,
                w_low,
            ),
            best_ms(lambda dy, w: product(dy, transposed(w)), dy_low, w_low),
        ]
        print(f"| {rows}, {inner}, {columns} | {' | '.join(f'{t:.1f}' for t in times)} |")


def main() -> None:
    """Prints both tables, each in a new process: memory must be set up before JAX starts."""
    if sys.argv[1:] == ["--keep"]:
        keep_freed_memory()
    if sys.argv[1:]:
        table()
        return
    for flag, title in {"--default": "returned to the kernel", "--keep": "kept"}.items():
        print(f"freed memory is {title}:", flush=True)
        subprocess.run([sys.executable, __file__, flag], check=True)


if __name__ == "__main__":
    main()
