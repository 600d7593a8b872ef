"""Keeping freed memory, so that a CPU step does not fetch it from the kernel again.

XLA's CPU client allocates the buffers of a step anew each time. glibc gives large
blocks back to the kernel at once, and every page of the next step then costs a page
fault: measured on two cores, a [1904, 256] x [256, 8000] product took 38 ms with
glibc's defaults and 19 ms with freed memory kept (`python benchmarks/matmul_forms.py`).
XLA computes in threads of its own, whose arenas glibc unmaps when they fall empty,
whatever the threshold; the quickstart spent a quarter of its time there. So all threads
share the one arena that heeds it.
"""

import ctypes
import sys

_M_TRIM_THRESHOLD, _M_MMAP_MAX, _M_ARENA_MAX = -1, -4, -8


def keep_freed_memory() -> None:
    """Tells glibc to serve large blocks from its heap and not to shrink it.

    A setting of the whole process, so programs make it (ours do, at their start) and
    libraries do not. Call it before JAX's first computation: made later, it showed no
    effect. Does nothing where the C library is another.
    """
    if sys.platform != "linux":
        return
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:
        mallopt(_M_ARENA_MAX, 1)
        mallopt(_M_MMAP_MAX, 0)
        mallopt(_M_TRIM_THRESHOLD, 2**31 - 1)
