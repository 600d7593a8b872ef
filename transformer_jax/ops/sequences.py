"""Operations along the length of arrays [B, L, ...]: chunks, reversal, caches."""

import jax
import jax.numpy as jnp
from jax import Array


def pad_to_multiple(x: Array, size: int, axis: int = 1, fill: float = 0.0) -> Array:
    """Pads the end of `axis` with `fill` up to the next multiple of `size`."""
    padding = [(0, 0)] * x.ndim
    padding[axis] = (0, -x.shape[axis] % size)
    return jnp.pad(x, padding, constant_values=fill)


def chunked(x: Array, size: int, axis: int = 1, fill: float = 0.0) -> Array:
    """[..., L, ...] -> [..., L/C, C, ...] at `axis`, in chunks of C = `size`, padded at the end."""
    x = pad_to_multiple(x, size, axis, fill)
    return x.reshape(*x.shape[:axis], -1, size, *x.shape[axis + 1 :])


def unchunked(x: Array, length: int, axis: int = 1) -> Array:
    """[..., L/C, C, ...] -> [..., L, ...] at `axis`: the inverse of `chunked`."""
    x = x.reshape(*x.shape[:axis], -1, *x.shape[axis + 2 :])
    return jax.lax.slice_in_dim(x, 0, length, axis=axis)


@jax.custom_vjp
def reverse_prefix(x_BLD: Array, mask_BL: Array) -> Array:
    """Reverses the real tokens of each row and leaves the padding after them in place.

    It is its own inverse.

    Args:
        mask_BL: True at real tokens, which come first.
    """
    position_1L = jnp.arange(mask_BL.shape[1])[None]
    length_B1 = mask_BL.sum(axis=1, keepdims=True)
    source_BL = jnp.where(position_1L < length_B1, length_B1 - 1 - position_1L, position_1L)
    return jnp.take_along_axis(x_BLD, source_BL[..., None], axis=1)


# A permutation that is its own inverse is its own transpose. Differentiating the gather would give
# a scatter, which is slow everywhere.
reverse_prefix.defvjp(
    lambda x_BLD, mask_BL: (reverse_prefix(x_BLD, mask_BL), mask_BL),
    lambda mask_BL, dy_BLD: (reverse_prefix(dy_BLD, mask_BL), None),
)


def write_token(cache: Array, token: Array, position: Array) -> Array:
    """The cache [B, L, ...] with `token` written at `position`, in the cache's dtype.

    Read the returned cache, not the argument: otherwise XLA keeps a copy of all of it.

    Args:
        token: [B, ...] or [B, 1, ...].
        position: a scalar below L.
    """
    return jax.lax.dynamic_update_index_in_dim(cache, token.astype(cache.dtype), position, axis=1)
