"""The device mesh, and the one table that maps logical axes of arrays to mesh axes."""

import functools
import math
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Annotated, Any

import jax
from jax.sharding import AbstractMesh, AxisType, Mesh, NamedSharding, PartitionSpec

from transformer_jax.errors import UserError
from transformer_jax.ops import sharding
from transformer_jax.settings.types import USUAL

MESH_AXES = ("data", "fsdp", "tensor")

#: The mesh axes that split each logical axis of a parameter or activation; None = not split.
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
    """Number of devices along each axis; one may be -1, all remaining devices."""

    data: Annotated[int, USUAL] = -1
    #: devices that split only the rows of a batch; -1 = all that remain
    fsdp: Annotated[int, USUAL] = 1  #: devices that split the rows of a batch and the parameters
    tensor: int = 1  #: devices that split the vocabulary, the heads and the hidden features


def make_mesh(config: MeshConfig, devices: list[jax.Device] | None = None) -> Mesh:
    """The mesh over `devices` (default: all).

    Raises:
        UserError: the product of the sizes is not the number of devices.
    """
    devices = jax.devices() if devices is None else devices
    sizes = [getattr(config, axis) for axis in MESH_AXES]
    text = " x ".join(f"{axis}={size}" for axis, size in zip(MESH_AXES, sizes, strict=True))
    if sizes.count(-1) > 1 or any(size < 1 and size != -1 for size in sizes):
        raise UserError(f"mesh {text}: sizes must be positive, and at most one may be -1")
    known = math.prod(size for size in sizes if size != -1)
    if len(devices) % known or (-1 not in sizes and known != len(devices)):
        raise UserError(f"mesh {text} does not fit {len(devices)} devices")
    sizes = [len(devices) // known if size == -1 else size for size in sizes]
    return jax.make_mesh(
        tuple(sizes), MESH_AXES, axis_types=(AxisType.Auto,) * len(MESH_AXES), devices=devices
    )


def decoding_mesh(config: MeshConfig, devices: list[jax.Device]) -> Mesh:
    """A mesh to translate on, which may have another number of devices than training had.

    It is the configured mesh if that fits, else `nearest`.
    """
    try:
        return make_mesh(config, devices)
    except UserError:
        return make_mesh(nearest(config, len(devices)), devices)


def nearest(config: MeshConfig, num_devices: int) -> MeshConfig:
    """A mesh for this many devices.

    `tensor` and `fsdp` become the largest divisors of the number of devices that also divide the
    configured sizes; the remaining devices go along `data`.
    """
    tensor = num_devices if config.tensor == -1 else math.gcd(config.tensor, num_devices)
    left = num_devices // tensor
    fsdp = left if config.fsdp == -1 else math.gcd(config.fsdp, left)
    return MeshConfig(fsdp=fsdp, tensor=tensor)


def batch_sharding(mesh: Mesh) -> NamedSharding:
    """Splits the rows of a batch over data x fsdp."""
    return NamedSharding(mesh, PartitionSpec(sharding.mesh_axes(LOGICAL_TO_MESH, "batch")))


def replicated(mesh: Mesh) -> NamedSharding:
    """The whole array on every device."""
    return NamedSharding(mesh, PartitionSpec())


def batch_devices(mesh: Mesh) -> int:
    """The number of parts into which a batch's rows are split; B must be a multiple of it."""
    axes = sharding.mesh_axes(LOGICAL_TO_MESH, "batch")
    return math.prod(mesh.shape[axis] for axis in axes)


@functools.cache
def num_processes(mesh: Mesh) -> int:
    """The number of processes to which the mesh's devices belong."""
    return len({device.process_index for device in mesh.devices.flat})


def decoding_rows(wanted: int, mesh: Mesh) -> int:
    """Rows of a batch to decode: `wanted` for each process, rounded up to a multiple."""
    parts = batch_devices(mesh)
    return -(-max(1, wanted) * num_processes(mesh) // parts) * parts


def lay_out(array: Any, sharding: NamedSharding) -> jax.Array:
    """Puts an array that every process has onto the devices of all processes."""
    return jax.make_array_from_callback(array.shape, sharding, lambda index: array[index])


def activations_on(mesh: Mesh | None) -> AbstractContextManager[None]:
    """A context for tracing: on a mesh, activations are split as `LOGICAL_TO_MESH` says."""
    return nullcontext() if mesh is None else sharding.layout(mesh, LOGICAL_TO_MESH)


def only_data(mesh: Mesh | AbstractMesh) -> bool:
    """Whether several devices share the batch and nothing else."""
    return bool(1 < mesh.size == mesh.shape["data"])


def kept_sharding(parameter: jax.ShapeDtypeStruct) -> NamedSharding:
    """Where a trained parameter, its average and its part of the optimizer's state are kept.

    On a mesh that splits only the rows of a batch, each device keeps and updates a part, and sends
    it to the others at the start of a step (Xu et al. 2020, arXiv:2004.13336). Together the sum of
    the gradient for each part and the sending of the parts are what an all-reduce of the gradient
    is. The first axis that the number of devices divides is split. Vectors are not: they are small,
    and each would be sent by itself.
    """
    own, shape = parameter.sharding, parameter.shape
    mesh = own.mesh
    axis = next((axis for axis, size in enumerate(shape) if size % mesh.size == 0), None)
    if axis is None or len(shape) < 2 or not only_data(mesh):
        return own
    return NamedSharding(mesh, PartitionSpec(*[None] * axis, "data"))


def process_share(mesh: Mesh) -> tuple[int, int]:
    """(index, count): this process feeds the index-th of `count` equal parts of a batch's rows.

    Processes that differ only along the `tensor` axis feed the same part.

    Raises:
        UserError: the rows of this process's devices are not one contiguous part.
    """
    rows = batch_devices(mesh)
    places = batch_sharding(mesh).addressable_devices_indices_map((rows,))
    mine = sorted({index[0].indices(rows)[0] for index in places.values() if index})
    first, size = mine[0], len(mine)
    if mine != list(range(first, first + size)) or rows % size or first % size:
        raise UserError(
            f"mesh {dict(mesh.shape)}: the rows of process {jax.process_index()} are not "
            "contiguous; make mesh.tensor a divisor of the devices of a process"
        )
    return first // size, rows // size


def shapes_on(shapes: Any, shardings: Any) -> Any:
    """Adds shardings to a tree of `jax.ShapeDtypeStruct`s."""
    return jax.tree.map(lambda shape, split: shape.update(sharding=split), shapes, shardings)


def shardings_of(shapes: Any) -> Any:
    """The inverse of `shapes_on`."""
    return jax.tree.map(lambda shape: shape.sharding, shapes)


def param_shardings(logical: Any, abstract: Any, mesh: Mesh) -> Any:
    """A NamedSharding for every parameter.

    Args:
        logical: tree of PartitionSpecs of logical names (`models.api.logical_axes`).
        abstract: tree of shapes (`models.api.abstract_params`).
        mesh: from `make_mesh`.

    An axis whose size is not a multiple of its mesh axis is not split.

    Raises:
        ValueError: a parameter has not one name for each axis, or a name that is not in the
            table; the message names the parameter.
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
