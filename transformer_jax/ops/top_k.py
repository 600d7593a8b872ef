"""The largest elements of rows."""

import math

import jax
import jax.numpy as jnp
from jax import Array

from transformer_jax.ops.sharding import per_device

#: Shorter chunks are not faster: their maxima are not vectorised.
_LEAST_CHUNK = 16


def top_k_of_rows(x: Array, k: int, axes: int = 1) -> tuple[Array, Array]:
    """`top_k` of x [B, ...], split over devices by B.

    XLA does not split it: on a CPU each device would gather all rows, which in a search
    are the logits [B, Z, V]. B is the logical axis "batch"; on a mesh, every device holds
    the other axes whole.
    """
    return per_device(lambda rows: top_k(rows, k, axes), ("batch",), x)


def top_k(x: Array, k: int, axes: int = 1) -> tuple[Array, Array]:
    """`jax.lax.top_k` over the last axis, or over the last two as one; faster for long rows.

    The row is cut into chunks. The k largest elements are in the k chunks with the largest
    maxima, because each of these contains one element that is at least as large as all of any other
    chunk. So two short selections replace a long one.

    Args:
        x: [..., N], or [..., Z, N] with `axes=2`.

    Returns:
        (values, int32 indices), both [..., k], descending; ties in order of index. With `axes=2`
        an index is z * N + n.
    """
    rows, width = x.shape[: x.ndim - axes], x.shape[-1]
    flat = x.reshape(*rows, -1)
    length = flat.shape[-1]
    chunk = _chunk(length, k, width)
    num_chunks = -(-length // chunk)
    if num_chunks <= k or k * chunk > length // 2:
        return jax.lax.top_k(flat, k)
    if missing := num_chunks * chunk - length:
        flat = jnp.pad(flat, [(0, 0)] * len(rows) + [(0, missing)], constant_values=-jnp.inf)
    # From x if possible: XLA for CPUs does not vectorise what it fuses with the join of two axes.
    lines = flat if width % chunk else x
    maxima = lines.reshape(*lines.shape[:-1], -1, chunk).max(axis=-1).reshape(*rows, -1)
    # In order of index, so that ties are too. Padding comes last and is never among the k: the
    # other elements of k chunks are more than k.
    _, chosen = jax.lax.top_k(maxima, k)
    chosen = jnp.sort(chosen, axis=-1)
    chunks = flat.reshape(*rows, -1, chunk)
    candidates = jnp.take_along_axis(chunks, chosen[..., None], axis=-2, mode="promise_in_bounds")
    values, places = jax.lax.top_k(candidates.reshape(*rows, -1), k)
    first = jnp.take_along_axis(chosen, places // chunk, axis=-1) * chunk
    return values, first + places % chunk


def _chunk(length: int, k: int, width: int) -> int:
    """Elements in a chunk.

    About sqrt(length / k): then the selections among length / chunk maxima and among k * chunk
    elements are equally long. A divisor of `width` if one is near, because padding is a copy.
    """
    best = max(_LEAST_CHUNK, round(math.sqrt(length / k)))
    near = range(max(_LEAST_CHUNK, best // 2), 2 * best)
    divisors = [chunk for chunk in near if width % chunk == 0]
    return min(divisors, key=lambda chunk: abs(chunk - best), default=best)


def first_argmax(values: Array) -> Array:
    """`jnp.argmax(values, axis=-1)` (the first of equal ones), int32.

    XLA's argmax reduces value-index pairs, which it does not vectorise on CPUs: over [160, 8000] it
    takes about 50 ms there. So one pass finds the largest of each chunk, and only the first chunk
    with the largest of all is searched. `top_k` copies rows that no chunk divides: with it a greedy
    search over 32,002 pieces takes a tenth longer.
    """
    size = values.shape[-1]
    rows = values.reshape(-1, size)
    chunk = min(size, max(_LEAST_CHUNK, round(math.sqrt(size))))
    window, missing = (1, chunk), -size % chunk
    maxima = jax.lax.reduce_window(
        rows, -jnp.inf, jax.lax.max, window, window, ((0, 0), (0, missing))
    )
    start = jnp.minimum(_first_largest(maxima) * chunk, size - chunk)
    chunks = jax.vmap(lambda row, at: jax.lax.dynamic_slice_in_dim(row, at, chunk))(rows, start)
    return (start + _first_largest(chunks)).reshape(values.shape[:-1])


def _first_largest(values: Array) -> Array:
    size = values.shape[-1]
    is_largest = values == jnp.max(values, axis=-1, keepdims=True)
    return jnp.min(jnp.where(is_largest, jnp.arange(size, dtype=jnp.int32), size - 1), axis=-1)
