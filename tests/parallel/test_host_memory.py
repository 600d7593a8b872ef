"""A step's memory is not fetched from the kernel anew."""

import subprocess
import sys

import pytest

#: The share of its memory that a step fetches from the kernel. The median of many: at its
#: start the heap grows for a step now and then, where the threads happen to ask at once.
PROGRAM = """
import resource, statistics, sys
import jax, jax.numpy as jnp
from transformer_jax.commands.host_memory import keep_freed_memory
if "keep" in sys.argv:
    keep_freed_memory()
x = jnp.ones((1280, 8))
w = jnp.ones((8, 8192))
@jax.jit
def step(x, w):
    y = x @ w
    return y @ w.T, y.sum()
faults = []
for _ in range(30):
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    jax.block_until_ready(step(x, w))
    faults.append(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
print(statistics.median(faults) * resource.getpagesize() / (1280 * 8192 * 4))
"""


def fetched_anew(*arguments):
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, *arguments], capture_output=True, text=True, check=True
    )
    return float(done.stdout)


@pytest.mark.skipif(sys.platform != "linux", reason="glibc's allocator")
def test_a_step_reuses_the_memory_of_the_one_before():
    assert fetched_anew("keep") < 0.1
    assert fetched_anew() > 0.5  # so the measure sees what it should
