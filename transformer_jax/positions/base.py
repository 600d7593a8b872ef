"""How a model is told the order of tokens: three hooks, identity by default."""

from dataclasses import dataclass
from typing import Any, ClassVar

from jax import Array

from transformer_jax.errors import UserError
from transformer_jax.layers.parameters import InContext

#: The hooks, and what each does to whom, for error messages.
HOOKS = {
    "embed": "marks the embeddings before the first layer",
    "rotate": "turns queries and keys before their product",
    "bias": "adds a number for each pair of positions to the attention scores",
}


@dataclass(frozen=True)
class PositionContext:
    """What a position scheme is built with besides its own options.

    Attributes:
        d_model: width of the residual stream.
        num_heads: heads of the attention that asks for `bias`.
        head_dim: width of a head.
        max_length: longest sequence the model is built for.
        causal: True in the decoder, which looks only backwards.
        param_dtype: of parameters.
    """

    d_model: int
    num_heads: int
    head_dim: int
    max_length: int
    causal: bool
    param_dtype: str = "float32"

    def check_length(self, length: int, name: str, instead: str = "") -> None:
        """Raises UserError if what is built for `max_length` positions gets more of them.

        Args:
            length: of the sequence.
            name: of what has so many.
            instead: what else to do, after a comma.
        """
        if length > self.max_length:
            raise UserError(
                f"{name} has at most model.max_length={self.max_length} positions, got {length}: "
                f"cut it, or train with a larger model.max_length{instead}"
            )


@dataclass(frozen=True)
class PositionConfig:
    """A scheme's options; a subclass in the scheme's file."""

    module: ClassVar[type["Position"]]  #: what `build` makes
    #: True if adding the same number to all positions changes nothing
    shift_invariant: ClassVar[bool] = False

    def check(self, context: PositionContext) -> None:
        """Refuses options that cannot work together or in this context.

        Raises:
            UserError: names the option; the caller adds its place in the config.
        """

    def build(self, context: PositionContext) -> "Position":
        """The Flax module, not yet initialised."""
        return self.module(self, context)

    def word_width(self, d_model: int) -> int:
        """Width of the word embeddings that `embed` takes; its result is d_model wide."""
        return d_model


class Position(InContext):
    """A position scheme. A subclass overrides the hooks it uses, and no others.

    One instance serves all layers of a stack, so its parameters are shared by them.
    Positions are absolute, counted from 0, and int32.

    Attributes:
        config: the scheme's options.
        context: the model's side of the configuration.
    """

    config: Any
    context: PositionContext

    @classmethod
    def hooks(cls) -> frozenset[str]:
        """The hooks that this scheme uses: those it overrides."""
        return frozenset(h for h in HOOKS if getattr(cls, h) is not getattr(Position, h))

    def check_length(self, length: int) -> None:
        """Raises UserError if the scheme has no positions for a sequence of this length."""

    def embed(self, x: Array, positions: Array) -> Array:
        """Marks embeddings x [B, L, word_width], at `positions` [L]; returns [B, L, D]."""
        return x

    def rotate(
        self, q: Array, k: Array, q_positions: Array, k_positions: Array
    ) -> tuple[Array, Array]:
        """Turns queries [B, T, H, K] and keys [B, M, H or fewer, K] before their product."""
        return q, k

    def bias(self, q_positions: Array, k_positions: Array) -> Array | None:
        """[H, T, M] float32 to add to the scores, or None."""
        return None
