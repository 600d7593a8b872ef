"""How devices that share nothing but the batch exchange parameters and gradients."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import NamedSharding, PartitionSpec

from transformer_jax.ops.sharding import own_rows
from transformer_jax.parallel.mesh import LOGICAL_TO_MESH

#: (params, batch, key) -> (gradient, sums): of the rows of the batch, added and not averaged.
RowGradient = Callable[[Any, Any, jax.Array], tuple[Any, Any]]


def sum_over_devices(
    row_gradient: RowGradient, params: Any, gradients: Any, *, used_as: Any, reduce_dtype: str
) -> RowGradient:
    """A function with the arguments of `row_gradient` that returns its sums over the whole batch.

    Each device has a part of the parameters. It gets the other parts, in the dtype in which they
    are used, and computes the gradient of its own rows. The sum of the gradients is kept in parts
    again. XLA's own partitioning would send parameters in float32, and add the gradients of tied
    embeddings one by one, and in float32.

    Args:
        row_gradient: is traced as if its device were alone.
        params: shardings of the parameters (`parallel.mesh.kept_sharding`); their mesh splits
            nothing but the rows.
        gradients: shardings of the gradients.
        used_as: the dtype in which each parameter is used.
        reduce_dtype: of the gradients while they are added.
    """
    mesh = jax.tree.leaves(params)[0].mesh

    def of_own_rows(parts: Any, batch: Any, key: jax.Array) -> tuple[Any, Any]:
        with own_rows(mesh, "data", LOGICAL_TO_MESH):  # each device is alone
            # Without the barrier a TPU's compiler sends a matrix again for each of its layouts.
            sent = jax.lax.optimization_barrier(_gather(parts, params, used_as))
            whole = jax.tree.map(lambda x, part: x.astype(part.dtype), sent, parts)
            gradient, sums = row_gradient(whole, batch, key)
        added = jax.tree.map(
            lambda g, sharding: _add(g, sharding, reduce_dtype), gradient, gradients
        )
        return added, jax.lax.psum(sums, "data")

    everywhere = PartitionSpec()
    parts_in, parts_out = jax.tree.map(lambda sharding: sharding.spec, (params, gradients))
    # Types that say along which axes values differ would make jax.grad add up each gradient itself.
    return jax.shard_map(
        of_own_rows,
        mesh=mesh,
        in_specs=(parts_in, PartitionSpec("data"), everywhere),
        out_specs=(parts_out, everywhere),
        check_vma=False,
    )


def _add(gradient: jax.Array, sharding: NamedSharding, dtype: str) -> jax.Array:
    """The sum over the devices, of which each keeps its part."""
    low = gradient.astype(dtype)
    if (axis := _split_axis(sharding)) is None:
        low = jax.lax.psum(low, "data")
    else:
        low = jax.lax.psum_scatter(low, "data", scatter_dimension=axis, tiled=True)
    return low.astype(gradient.dtype)


def _gather(params: Any, shardings: Any, dtypes: Any) -> Any:
    """All of every parameter, from its parts, in a dtype.

    Those of one dtype are sent as one array: with many devices a part is small, and a TPU's
    compiler replaces the sending of small parts by an all-reduce, which takes twice the time.
    """
    leaves, tree = jax.tree.flatten(params)
    used = jax.tree.leaves(dtypes)
    axes = map(_split_axis, jax.tree.leaves(shardings))
    split = {i: axis for i, axis in enumerate(axes) if axis is not None}
    for dtype in dict.fromkeys(used[i] for i in split):
        chosen = [i for i in split if used[i] == dtype]
        own = jnp.concatenate([leaves[i].astype(dtype).ravel() for i in chosen])
        ends = np.cumsum([leaves[i].size for i in chosen])
        by_device = jax.lax.all_gather(own, "data")
        for i, parts in zip(chosen, jnp.split(by_device, ends[:-1], axis=1), strict=True):
            leaves[i] = _join(parts.reshape(-1, *leaves[i].shape), split[i])
    return jax.tree.unflatten(tree, leaves)


def _join(parts: jax.Array, axis: int) -> jax.Array:
    """[number of parts, ...] -> the parts one after the other along an axis of theirs."""
    count, *shape = parts.shape
    shape[axis] *= count
    return jnp.moveaxis(parts, 0, axis).reshape(shape)


def _split_axis(sharding: NamedSharding) -> int | None:
    """The axis of which each device has a part; None: each has all of the array."""
    spec = tuple(sharding.spec)
    return spec.index("data") if "data" in spec else None
