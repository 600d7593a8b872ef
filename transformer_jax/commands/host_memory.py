"""Keeps freed memory, so that a step on a CPU does not fetch it from the kernel again.

XLA's CPU client allocates the buffers of each step anew. glibc returns large blocks to the kernel
at once, and each page of the next step then costs a page fault: on two cores, a [1904, 256] x
[256, 8000] product took 38 ms with glibc's defaults and 19 ms with freed memory kept
(`python benchmarks/matmul_forms.py`). XLA's threads have arenas of their own, which glibc unmaps
when they are empty, whatever the threshold; the quickstart spent a quarter of its time on that.
So all threads share the one arena that obeys the threshold.
"""

import ctypes
import sys

_M_TRIM_THRESHOLD, _M_MMAP_MAX, _M_ARENA_MAX = -1, -4, -8


def keep_freed_memory() -> None:
    """Tells glibc to take large blocks from its heap and not to shrink the heap.

    This changes the whole process, so programs call it at their start and libraries do not. It
    had no effect after JAX's first computation. Other C libraries are left as they are.
    """
    if sys.platform == "linux" and (mallopt := getattr(ctypes.CDLL(None), "mallopt", None)):
        mallopt(_M_ARENA_MAX, 1)
        mallopt(_M_MMAP_MAX, 0)
        mallopt(_M_TRIM_THRESHOLD, 2**31 - 1)
