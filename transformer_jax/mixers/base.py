"""What every sequence mixer is: the same projections seen two ways.

`__call__` mixes a whole sequence in parallel (training, encoding); `step` takes one
token and the state of those before it (decoding). The two are equal, and
`tests/contract` holds every registered mixer to that.
"""

from dataclasses import dataclass
from typing import Any, ClassVar

import jax
from flax import linen as nn

from transformer_jax.positions.base import Position

#: A role that a mixer cannot honour maps to the sentence that says why and what to use
#: (of "cross" only why: what to use is the same for all).
Refusals = dict[str, str]

#: Why a mixer without a `CrossMixer` of its name cannot read the memory, unless it says better.
NOT_CROSS = "it mixes one sequence with itself, and has no queries that read another"

State = Any


@dataclass(frozen=True)
class MixerContext:
    """What a mixer is built with besides its own options.

    Attributes:
        d_model: width of its input and output.
        num_heads: heads, for mixers that have them.
        head_dim: width of one head.
        causal: True in the decoder.
        max_length: the longest sequence the model is built for.
        attention_dropout_rate: dropout on attention weights, for mixers that have them.
        dtypes: `dtype`, `matmul_dtype` and `param_dtype` of every layer inside.
        layer: its place in the stack, from 0, for constants that differ between layers.
    """

    d_model: int
    num_heads: int
    head_dim: int
    causal: bool
    max_length: int
    attention_dropout_rate: float
    dtypes: dict
    layer: int = 0


class Mixer(nn.Module):
    """Self-mixing along the sequence, in the encoder or the decoder.

    Attributes:
        context: the model's side of the configuration.
        options: the mixer's own, an instance of its `Options`.
        position: the stack's position scheme.
    """

    #: roles in {"encoder", "decoder", "cross"} that this class refuses, with the reason; what
    #: is not in `CROSS_MIXERS` is refused as "cross" without being named here
    refuses: ClassVar[Refusals] = {}
    #: the position hooks that this class applies, of {"rotate", "bias"}
    honours: ClassVar[frozenset[str]] = frozenset()
    #: True where the mixer knows where a token stands without any position scheme:
    #: recurrences, convolutions, token-mixing MLPs
    knows_order: ClassVar[bool] = False
    #: roles in which time or memory of `__call__` grows with the square of the length
    quadratic: ClassVar[frozenset[str]] = frozenset()

    context: MixerContext
    options: Any
    position: Position

    @classmethod
    def check(cls, context: MixerContext, options: Any, *, hooks: frozenset[str], key: str) -> None:
        """Raises UserError where the options cannot work; run before anything is built.

        Args:
            context: the model's side; `causal` tells the role.
            options: an instance of `Options`.
            hooks: what the stack's position scheme uses (`Position.hooks`).
            key: where the options stand in the config, such as `model.encoder.options.full`.
        """

    def __call__(self, x_BLD: jax.Array, mask_BL: jax.Array) -> jax.Array:
        """Mixes [B, L, D] along L; padding (mask False) changes nothing at real tokens."""
        raise NotImplementedError

    def init_state(self, batch: int, max_length: int) -> State:
        """The state before the first token; every leaf leads with `batch`."""
        raise NotImplementedError

    def step(self, x_BD: jax.Array, state: State, position: jax.Array) -> tuple[jax.Array, State]:
        """One token: x [B, D] at scalar `position` -> ([B, D], the next state)."""
        raise NotImplementedError


class CrossMixer(nn.Module):
    """Reads the encoder's memory from the decoder.

    The memory is projected once (`project`); the queries of all beams of a sentence
    read it side by side on the length axis, so it is never copied per beam.
    """

    #: True where the cost grows with the product of the two lengths
    quadratic: ClassVar[bool] = False

    context: MixerContext
    options: Any

    @classmethod
    def check(cls, context: MixerContext, options: Any, *, key: str) -> None:
        """As `Mixer.check`; `key` is `model.cross_options.<name>`."""

    def project(self, memory_BMD: jax.Array, mask_BM: jax.Array) -> State:
        """What `read` needs of the memory; every leaf leads with B."""
        raise NotImplementedError

    def read(self, x_BTD: jax.Array, projected: State) -> jax.Array:
        """Each of the T queries reads the memory on its own: [B, T, D] -> [B, T, D]."""
        raise NotImplementedError
