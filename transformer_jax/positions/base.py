"""How a model can be told where a word stands: three hooks, identity by default."""

import jax
from flax import linen as nn


class Position(nn.Module):
    """A position scheme. A subclass overrides the hooks it uses, and no others.

    Attributes:
        d_model: width of the embeddings.
        num_heads: heads of the attention that asks for `bias`.
        head_dim: width of a head.
        max_length: longest sequence the model is built for.
        causal: the stack looks only backwards (relative schemes may use this).
    """

    d_model: int
    num_heads: int
    head_dim: int
    max_length: int
    causal: bool

    def embed(self, x: jax.Array, positions: jax.Array) -> jax.Array:
        """Marks embeddings x [B, L, D], at `positions` [L], before the first layer."""
        del positions
        return x

    def rotate(
        self, q: jax.Array, k: jax.Array, q_positions: jax.Array, k_positions: jax.Array
    ) -> tuple[jax.Array, jax.Array]:
        """Turns queries [B, T, H, K] and keys [B, M, H, K] before their product."""
        del q_positions, k_positions
        return q, k

    def bias(self, q_positions: jax.Array, k_positions: jax.Array) -> jax.Array | None:
        """[H, T, M] float32 to add to the scores, or None."""
        del q_positions, k_positions
        return None
