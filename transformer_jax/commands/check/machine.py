"""What this process runs on: devices, their memory, versions."""

import importlib.metadata
import platform
from collections.abc import Iterator

import jax

from transformer_jax.commands.check.row import Row

PART = "machine"
_PACKAGES = ("transformer-jax", "jax", "jaxlib", "flax", "optax", "orbax-checkpoint", "numpy")


def rows() -> Iterator[Row]:
    """Devices and versions. Nothing here can fail."""
    devices = jax.devices()
    yield Row(
        PART, "devices", f"{len(devices)} x {devices[0].device_kind} ({jax.default_backend()})"
    )
    stats = devices[0].memory_stats() or {}
    if limit := stats.get("bytes_limit"):
        yield Row(PART, "memory of a device", limit / 2**30, "GiB")
    versions = [f"{name} {importlib.metadata.version(name)}" for name in _PACKAGES]
    yield Row(PART, "versions", ", ".join((f"Python {platform.python_version()}", *versions)))
