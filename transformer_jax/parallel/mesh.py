"""One mesh, and the one table that maps logical axes of arrays to its axes."""

import math
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any

import jax
import numpy as np
from jax.sharding import AxisType, Mesh, NamedSharding, PartitionSpec

from transformer_jax.errors import UserError
from transformer_jax.ops import sharding

MESH_AXES = ("data", "fsdp", "tensor")

#: Where each logical axis of a parameter or an activation lies; None = not split.
LOGICAL_TO_MESH: dict[str, str | tuple[str, ...] | None] = {
    "batch": ("data", "fsdp"),
    "vocab": "tensor",
    "embed": "fsdp",
    "mlp": "tensor",
    "heads": "tensor",
    "head_dim": None,
    "positions": None,
    "buckets": None,
    "rank": None,  # narrow inner axes of low-rank maps
    "state": None,  # the state of one channel of a state space model
}


@dataclass(frozen=True)
class MeshConfig:
    """Devices along each axis; one of them may be -1 (all that are left)."""

    data: int = -1
    fsdp: int = 1
    tensor: int = 1


def make_mesh(config: MeshConfig, devices: list[jax.Device] | None = None) -> Mesh:
    """The mesh over `devices` (default: all).

    Raises:
        UserError: the sizes do not multiply to the number of devices.
    """
    devices = jax.devices() if devices is None else devices
    sizes = [getattr(config, axis) for axis in MESH_AXES]
    text = " x ".join(f"{axis}={size}" for axis, size in zip(MESH_AXES, sizes, strict=True))
    if sizes.count(-1) > 1 or any(size < 1 and size != -1 for size in sizes):
        raise UserError(f"mesh {text}: sizes must be positive, and at most one may be -1")
    known = int(np.prod([size for size in sizes if size != -1]))
    if len(devices) % known or (-1 not in sizes and known != len(devices)):
        raise UserError(f"mesh {text} does not fit {len(devices)} devices")
    sizes = [len(devices) // known if size == -1 else size for size in sizes]
    return jax.make_mesh(
        tuple(sizes), MESH_AXES, axis_types=(AxisType.Auto,) * len(MESH_AXES), devices=devices
    )


def decoding_mesh(config: MeshConfig, devices: list[jax.Device]) -> Mesh:
    """A mesh to translate on: a model may have been trained on another number of devices.

    As configured where that fits, else with parameters split over as many of the devices as
    `tensor` and `fsdp` say and the devices divide among, and the rest along `data`.
    """
    try:
        return make_mesh(config, devices)
    except UserError:
        return make_mesh(nearest(config, len(devices)), devices)


def nearest(config: MeshConfig, num_devices: int) -> MeshConfig:
    """A mesh that fits so many devices and divides parameters as nearly as `config` as it can."""

    def split(wanted: int, left: int) -> int:
        return left if wanted == -1 else math.gcd(max(wanted, 1), left)

    tensor = split(config.tensor, num_devices)
    return MeshConfig(fsdp=split(config.fsdp, num_devices // tensor), tensor=tensor)


def batch_sharding(mesh: Mesh) -> NamedSharding:
    """Rows of a batch are split over data x fsdp."""
    return NamedSharding(mesh, PartitionSpec(sharding.mesh_axes(LOGICAL_TO_MESH, "batch")))


def replicated(mesh: Mesh) -> NamedSharding:
    """The same on every device."""
    return NamedSharding(mesh, PartitionSpec())


def batch_devices(mesh: Mesh) -> int:
    """Into how many parts a batch's rows are split; B must be a multiple."""
    axes = sharding.mesh_axes(LOGICAL_TO_MESH, "batch")
    return int(np.prod([mesh.shape[axis] for axis in axes]))


def num_processes(mesh: Mesh) -> int:
    """How many processes its devices belong to."""
    return len({device.process_index for device in mesh.devices.flat})


def decoding_rows(wanted: int, mesh: Mesh) -> int:
    """Rows of a batch to decode: as many for each process, or the next number that divides."""
    parts = batch_devices(mesh)
    return -(-max(1, wanted) * num_processes(mesh) // parts) * parts


def lay_out(array: Any, sharding: NamedSharding) -> jax.Array:
    """An array that every process has, laid out over the devices of them all."""
    return jax.make_array_from_callback(array.shape, sharding, lambda index: array[index])


def activations_on(mesh: Mesh) -> AbstractContextManager[None]:
    """A context for the inside of a jitted function: activations lie as the table says."""
    return sharding.layout(mesh, LOGICAL_TO_MESH)


def process_share(mesh: Mesh) -> tuple[int, int]:
    """(index, count): this process feeds the index-th of `count` equal parts of a batch's rows.

    Processes between which only tensors are split feed the same part.

    Raises:
        UserError: the devices of this process do not make up one such part.
    """
    rows = batch_devices(mesh)
    places = batch_sharding(mesh).addressable_devices_indices_map((rows,))
    mine = sorted({index[0].indices(rows)[0] for index in places.values() if index})
    first, size = mine[0], len(mine)
    if mine != list(range(first, first + size)) or rows % size or first % size:
        raise UserError(
            f"mesh {dict(mesh.shape)}: the rows of process {jax.process_index()} do not lie "
            "together; make mesh.tensor a divisor of the devices of a process"
        )
    return first // size, rows // size


def shapes_on(shapes: Any, shardings: Any) -> Any:
    """A tree of shapes with its shardings: what is to be restored or planned, not yet there."""
    return jax.tree.map(
        lambda s, sharding: jax.ShapeDtypeStruct(s.shape, s.dtype, sharding=sharding),
        shapes,
        shardings,
    )


def param_shardings(logical: Any, abstract: Any, mesh: Mesh) -> Any:
    """A NamedSharding for every parameter.

    Args:
        logical: tree of PartitionSpecs of logical names (`models.api.logical_axes`).
        abstract: tree of shapes (`models.api.abstract_params`).
        mesh: from `make_mesh`.

    An axis that its mesh axis does not divide stays whole.

    Raises:
        ValueError: a parameter without a name for each of its axes, or with a name that the
            table does not know; names the parameter.
    """

    def of(path: Any, names: PartitionSpec, array: jax.ShapeDtypeStruct) -> NamedSharding:
        where = jax.tree_util.keystr(path, simple=True, separator="/")
        if len(names) != len(array.shape):
            raise ValueError(
                f"parameter {where} of shape {array.shape} has logical axes {tuple(names)}; "
                "expected one name, or None, for each axis"
            )
        try:
            axes = sharding.spec(mesh, LOGICAL_TO_MESH, tuple(names), array.shape)
        except ValueError as error:
            raise ValueError(f"parameter {where}: {error} (LOGICAL_TO_MESH)") from error
        return NamedSharding(mesh, axes)

    return jax.tree_util.tree_map_with_path(
        of, logical, abstract, is_leaf=lambda x: isinstance(x, PartitionSpec)
    )
