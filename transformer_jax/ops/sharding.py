"""Where activations lie on a mesh, said by logical names while a function is traced.

XLA decides on its own how to split what lies between parameters and batch. With
parameters split over `fsdp` it may then move activations about, which are large, where
moving weights would do. `constrain` pins an activation by the names of its axes. The mesh
and the table from names to its axes come from `layout`, a context that whoever compiles
for a mesh enters inside the traced function; without one all this does nothing.
"""

import functools
import math
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

import jax
from jax.sharding import Mesh, NamedSharding, PartitionSpec

#: Logical axis -> the mesh axis, or axes, it is split over; None = not split.
Table = Mapping[str, str | tuple[str, ...] | None]

_LAYOUT: ContextVar[tuple[Mesh, Table] | None] = ContextVar("layout", default=None)


@contextmanager
def layout(mesh: Mesh, table: Table) -> Iterator[None]:
    """What is traced inside is laid out on `mesh` as `table` says."""
    token = _LAYOUT.set((mesh, table))
    try:
        yield
    finally:
        _LAYOUT.reset(token)


def mesh_axes(table: Table, name: str | None) -> tuple[str, ...]:
    """The mesh axes that a logical axis is split over, possibly none.

    Raises:
        ValueError: a name that the table does not know.
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
    """The PartitionSpec of an array; an axis that the mesh does not divide stays whole."""
    entries: list[tuple[str, ...] | None] = []
    for name, size in zip(names, shape, strict=True):
        axes = mesh_axes(table, name)
        divides = size % math.prod(mesh.shape[axis] for axis in axes) == 0
        entries.append(axes if axes and divides else None)
    return PartitionSpec(*(axes[0] if axes and len(axes) == 1 else axes for axes in entries))


def constrain(x: jax.Array, *names: str | None) -> jax.Array:
    """`x`, laid out by the logical names of its leading axes; further axes are XLA's to lay."""
    current = _LAYOUT.get()
    if current is None:
        return x
    mesh, table = current
    leading = spec(mesh, table, names, x.shape[: len(names)])
    if mesh.size == 1:
        return x
    free = [PartitionSpec.UNCONSTRAINED] * (x.ndim - len(names))
    return jax.lax.with_sharding_constraint(x, NamedSharding(mesh, PartitionSpec(*leading, *free)))


def rowwise(function: Callable[[jax.Array], Any], x: jax.Array) -> Any:
    """`function(x)`, which each device computes for its own rows of the logical axis "batch".

    For operations that need nothing of other rows and that XLA cannot split by itself.
    Every array of the result leads with the rows.
    """
    current = _LAYOUT.get()
    if current is None or current[0].size == 1:
        return function(x)
    mesh, table = current
    rows = spec(mesh, table, ("batch",), x.shape[:1])
    return jax.shard_map(function, mesh=mesh, in_specs=rows, out_specs=rows)(x)


def num_shards(name: str) -> int:
    """Into how many parts the logical axis is split where we are; 1 without a mesh."""
    current = _LAYOUT.get()
    if current is None:
        return 1
    mesh, table = current
    return math.prod(mesh.shape[axis] for axis in mesh_axes(table, name))


def top_k_of_rows(x: jax.Array, k: int) -> tuple[jax.Array, jax.Array]:
    """`jax.lax.top_k` over the last axis of x [B, ...], split over devices by B.

    XLA does not split it: on a CPU each device would gather all rows, which in a search
    are the logits [B, Z, V]. B is the logical axis "batch"; on a mesh, every device holds
    the other axes whole.

    Returns:
        (values, int32 indices), both [B, ..., k], descending; ties in order of index.
    """
    return rowwise(functools.partial(jax.lax.top_k, k=k), x)
