"""How activations are split over a mesh, by the logical names of their axes.

XLA chooses the sharding of everything between parameters and batch. With parameters split over
`fsdp` it may move activations, which are large, instead of weights. `constrain` fixes the
sharding of an activation by the names of its axes. The mesh, and the table from names to mesh
axes, come from the context `layout`, which the caller enters inside the function that is
traced. Outside of it, the functions of this file have no effect.
"""

import math
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from contextvars import ContextVar
from typing import Any, NamedTuple

import jax
from jax import Array
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from transformer_jax.ops.platform import tracing_with

#: Logical axis -> the mesh axis, or axes, it is split over; None = not split.
Table = Mapping[str, str | tuple[str, ...] | None]


class _Layout(NamedTuple):
    mesh: Mesh
    table: Table
    rows_axis: str | None  #: the mesh axis of `own_rows`


_LAYOUT: ContextVar[_Layout | None] = ContextVar("layout", default=None)
_PLATFORM: ContextVar[str | None] = ContextVar("platform", default=None)


def layout(mesh: Mesh, table: Table, rows_axis: str | None = None) -> AbstractContextManager[None]:
    """Functions traced inside are sharded over `mesh` by `table`."""
    return tracing_with(_LAYOUT, _Layout(mesh, table, rows_axis))


@contextmanager
def alone_on(platform: str) -> Iterator[None]:
    """Functions traced inside are for one device of a platform, whatever surrounds the call."""
    with tracing_with(_LAYOUT, None), tracing_with(_PLATFORM, platform):
        yield


def own_rows(mesh: Mesh, axis: str, table: Table) -> AbstractContextManager[None]:
    """For a function traced by `jax.shard_map` over `axis`, the only mesh axis that is split.

    Each device then runs the function for its own rows, as if it were alone.
    """
    alone = Mesh(mesh.devices.ravel()[:1].reshape([1] * mesh.devices.ndim), mesh.axis_names)
    return layout(alone, table, axis)


def rows_part() -> tuple[Array | int, int]:
    """(index, count): this device has the index-th of `count` equal parts of the batch's rows.

    (0, 1) outside of `own_rows`.
    """
    current = _LAYOUT.get()
    if current is None or current.rows_axis is None:
        return 0, 1
    return jax.lax.axis_index(current.rows_axis), jax.lax.axis_size(current.rows_axis)


def mesh_axes(table: Table, name: str | None) -> tuple[str, ...]:
    """The mesh axes that a logical axis is split over, possibly none.

    Raises:
        ValueError: the table does not contain the name.
    """
    if name is None:
        return ()
    if name not in table:
        raise ValueError(
            f"unknown logical axis {name!r}: the table of logical axes knows {', '.join(table)}"
        )
    axes = table[name]
    return (axes,) if isinstance(axes, str) else tuple(axes or ())


def spec(
    mesh: Mesh, table: Table, names: tuple[str | None, ...], shape: tuple[int, ...]
) -> PartitionSpec:
    """The PartitionSpec of an array; an axis that the mesh does not divide is not split."""

    def divides(axes: tuple[str, ...], size: int) -> bool:
        return size % math.prod(mesh.shape[axis] for axis in axes) == 0

    named = zip((mesh_axes(table, name) for name in names), shape, strict=True)
    return PartitionSpec(*(axes if divides(axes, size) else None for axes, size in named))


def num_devices() -> int:
    """The number of devices that the traced function runs on; 1 outside of a layout."""
    current = _LAYOUT.get()
    return 1 if current is None else current[0].size


def constrain(x: Array, *names: str | None) -> Array:
    """`x`, sharded by the logical names of its leading axes; XLA chooses for further axes."""
    current = _LAYOUT.get()
    if current is None:
        return x
    mesh, table, _ = current
    leading = spec(mesh, table, names, x.shape[: len(names)])
    if mesh.size == 1:
        return x
    free = [PartitionSpec.UNCONSTRAINED] * (x.ndim - len(names))
    return jax.lax.with_sharding_constraint(x, NamedSharding(mesh, PartitionSpec(*leading, *free)))


def per_device(function: Callable[..., Any], names: tuple[str | None, ...], *arrays: Array) -> Any:
    """`function(*arrays)`, computed by each device for its own part of the named axes.

    For functions that XLA does not split by itself, and whose parts do not need each other.

    Args:
        names: logical names of the leading axes of every array and of every array of the result,
            which has the sizes of the first argument there. An axis that the mesh does not divide
            is not split: every device then computes all of it.
    """
    current = _LAYOUT.get()
    if current is None or current[0].size == 1:
        return function(*arrays)
    mesh, table, _ = current
    specs = [spec(mesh, table, names[: x.ndim], x.shape[: len(names)]) for x in arrays]
    # A Pallas call does not say along which mesh axes its results differ, so that is not checked.
    split = jax.shard_map(
        function, mesh=mesh, in_specs=tuple(specs), out_specs=specs[0], check_vma=False
    )
    return split(*arrays)


def splits_work() -> bool:
    """Whether `per_device` knows all devices of the traced function.

    They are those of the mesh. Without a mesh it is known only if there is no more than one.
    """
    return _LAYOUT.get() is not None or jax.device_count() == 1


def target() -> str:
    """The platform of the devices that the traced function is compiled for.

    They are the mesh's, which may only be described (`train.py --plan_topology`). Without a mesh
    they are this process's, or those of `alone_on`.
    """
    current = _LAYOUT.get()
    if current is None:
        return _PLATFORM.get() or jax.default_backend()
    return current[0].devices.flat[0].platform


def num_shards(name: str) -> int:
    """The number of parts into which the logical axis is split; 1 without a mesh."""
    current = _LAYOUT.get()
    if current is None:
        return 1
    mesh, table, _ = current
    return math.prod(mesh.shape[axis] for axis in mesh_axes(table, name))
