"""Reversing each sequence of a padded batch by its own length."""

import jax
import jax.numpy as jnp


@jax.custom_vjp
def reverse_prefix(x_BLD: jax.Array, mask_BL: jax.Array) -> jax.Array:
    """Reverses the first n_b positions of row b, n_b being the real tokens of its mask.

    What follows them stays in place, so that twice is the identity.

    Args:
        x_BLD: sequences.
        mask_BL: True at real tokens, which stand first.
    """
    position_L = jnp.arange(mask_BL.shape[1])
    real_B1 = mask_BL.sum(axis=1, keepdims=True)
    source_BL = jnp.where(position_L < real_B1, real_B1 - 1 - position_L, position_L)
    return jnp.take_along_axis(x_BLD, source_BL[..., None], axis=1)


def _forward(x_BLD: jax.Array, mask_BL: jax.Array) -> tuple[jax.Array, jax.Array]:
    return reverse_prefix(x_BLD, mask_BL), mask_BL


def _backward(mask_BL: jax.Array, dy_BLD: jax.Array) -> tuple[jax.Array, None]:
    # A permutation that is its own inverse is its own transpose. Differentiating the
    # gather would give a scatter, which is slow everywhere.
    return reverse_prefix(dy_BLD, mask_BL), None


reverse_prefix.defvjp(_forward, _backward)
