"""How a model can be told where a word stands: three hooks, identity by default."""

from dataclasses import dataclass
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
from flax import linen as nn

#: The hooks, and what each does to whom, for error messages.
HOOKS = {
    "embed": "marks the embeddings before the first layer",
    "rotate": "turns queries and keys before their product",
    "bias": "adds a number for each pair of positions to the attention scores",
}


@dataclass(frozen=True)
class NoOptions:
    """A scheme without options."""


class Position(nn.Module):
    """A position scheme. A subclass overrides the hooks it uses, and no others.

    One instance serves all layers of a stack, so its parameters are shared by them.
    Positions are absolute, counted from 0, and int32.

    Attributes:
        d_model: width of the residual stream.
        num_heads: heads of the attention that asks for `bias`.
        head_dim: width of a head.
        max_length: longest sequence the model is built for.
        causal: the stack looks only backwards (relative schemes may use this).
        param_dtype: of its parameters, where it has any.
        options: the scheme's own, an instance of its `Options`.
    """

    Options: ClassVar[Any] = NoOptions
    #: True where adding the same number to all positions changes nothing.
    shift_invariant: ClassVar[bool] = False

    d_model: int
    num_heads: int
    head_dim: int
    max_length: int
    causal: bool
    param_dtype: Any = jnp.float32
    options: Any = NoOptions()

    @classmethod
    def hooks(cls) -> frozenset[str]:
        """The hooks that this scheme uses: those it overrides."""
        return frozenset(h for h in HOOKS if getattr(cls, h) is not getattr(Position, h))

    @classmethod
    def check(cls, options: Any, key: str, *, d_model: int, head_dim: int) -> None:
        """Raises UserError where `options` cannot work; `key` is their place in the config."""

    @classmethod
    def word_width(cls, d_model: int, options: Any) -> int:
        """Width of the word embeddings that `embed` takes; what it returns is d_model wide."""
        del options
        return d_model

    def check_length(self, length: int) -> None:
        """Raises UserError where the scheme has no positions for so long a sequence."""

    def embed(self, x: jax.Array, positions: jax.Array) -> jax.Array:
        """Marks embeddings x [B, L, word_width], at `positions` [L]; returns [B, L, D]."""
        del positions
        return x

    def rotate(
        self, q: jax.Array, k: jax.Array, q_positions: jax.Array, k_positions: jax.Array
    ) -> tuple[jax.Array, jax.Array]:
        """Turns queries [B, T, H, K] and keys [B, M, H or fewer, K] before their product."""
        del q_positions, k_positions
        return q, k

    def bias(self, q_positions: jax.Array, k_positions: jax.Array) -> jax.Array | None:
        """[H, T, M] float32 to add to the scores, or None."""
        del q_positions, k_positions
        return None
