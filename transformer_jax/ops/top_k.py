"""The k largest of each row, found where the row lies."""

import functools

import jax
from jax import lax

from transformer_jax.ops.sharding import rowwise


def top_k_of_rows(x: jax.Array, k: int) -> tuple[jax.Array, jax.Array]:
    """`lax.top_k` over the last axis of x [B, ...], split over devices by B.

    XLA does not split its own: on CPU each device would gather all rows, which in a
    search are the logits [B, Z, V].

    Args:
        x: B is the logical axis "batch"; on a mesh that it divides, the other axes are made
            whole on each device.
        k: at most the length of the last axis.

    Returns:
        (values, int32 indices), both [B, ..., k], falling; of equals the first comes first.
    """
    return rowwise(functools.partial(lax.top_k, k=k), x)
