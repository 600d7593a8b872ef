"""The interface of every sequence mixer: one function in two forms.

`__call__` mixes a whole sequence in parallel (training, encoding); `step` takes one
token and the state of those before it (decoding). The two are equal, and
`tests/contract` checks that for every registered mixer.

A mixer's config is a frozen dataclass of its options. It also states where the mixer can
be used, and builds the Flax module.
"""

from dataclasses import dataclass
from typing import Any, ClassVar

import jax.numpy as jnp
from jax import Array

from transformer_jax.errors import UserError
from transformer_jax.layers.norms import Norm
from transformer_jax.layers.parameters import InContext
from transformer_jax.layers.projections import Dense
from transformer_jax.positions.base import Position, PositionContext

#: Role in {"encoder", "decoder", "cross"} -> why the mixer cannot play it and what to use
#: instead (for "cross" only why: the alternatives are the same for all).
Refusals = dict[str, str]

#: Why a mixer without an entry in `CROSS_MIXERS` cannot read the memory, by default.
NOT_CROSS = "it mixes one sequence with itself, and has no queries that read another"

State = Any


@dataclass(frozen=True)
class MixerContext(PositionContext):
    """What a mixer is built with besides its own options and its position scheme.

    Attributes:
        dtype: of activations.
        matmul_dtype: of the operands of matrix products.
        layer: index of the layer in its stack, for constants that differ between layers.
    """

    dtype: str = "float32"
    matmul_dtype: str = "float32"
    layer: int = 0

    @property
    def dtypes(self) -> dict[str, Any]:
        """The three dtypes, as arguments of a layer."""
        names = ("dtype", "matmul_dtype", "param_dtype")
        return {name: getattr(self, name) for name in names}

    def linear(self, inputs: int, outputs: int, axes: tuple[str, str], **options: Any) -> Dense:
        """A projection, without a bias unless the options say so."""
        options = {"use_bias": False, **self.dtypes, **options}
        return Dense(inputs, outputs, axes, **options)

    def norm(self, features: int, epsilon: float, **options: Any) -> Norm:
        """A norm of what a mixer computes."""
        return Norm(features, epsilon, dtype=self.dtype, param_dtype=self.param_dtype, **options)


@dataclass(frozen=True)
class MixerConfig:
    """A mixer's options; a subclass in the mixer's file."""

    module: ClassVar[type["Mixer"]]  #: what `build` makes
    #: roles of {"encoder", "decoder", "cross"} that the mixer cannot play -> the reason; a
    #: mixer without an entry in `CROSS_MIXERS` is refused as "cross" without naming it here
    refuses: ClassVar[Refusals] = {}
    #: the position hooks that it applies, of {"rotate", "bias"}
    honours: ClassVar[frozenset[str]] = frozenset()
    #: True if it knows the order of tokens without any position scheme: recurrences,
    #: convolutions, token-mixing MLPs
    knows_order: ClassVar[bool] = False
    #: roles in which time or memory of `__call__` grows with the square of the length
    quadratic: ClassVar[frozenset[str]] = frozenset()
    #: True if it reads `context.layer`, so that two of its layers differ in more than parameters
    uses_layer: ClassVar[bool] = False

    def check(self, context: MixerContext, hooks: frozenset[str]) -> None:
        """Refuses options that cannot work together or in this context.

        Args:
            context: the model's side; `causal` tells the role.
            hooks: what the stack's position scheme uses (`Position.hooks`).

        Raises:
            UserError: names the option; the caller adds its place in the config.
        """

    def build(self, context: MixerContext, position: Position) -> "Mixer":
        """The Flax module, not yet initialised."""
        return self.module(self, context, position)

    def refuse_unused(self, option: str, why: str) -> None:
        """Raises UserError if an option that this role does not use is not at its default."""
        value = getattr(self, option)
        if value != getattr(type(self), option):
            raise UserError(f"{option}={value} has no effect here: {why}")


class MixerModule(InContext):
    """What self-mixers and readers of the memory have in common.

    Attributes:
        config: the mixer's options.
        context: the model's side of the configuration.
    """

    config: Any
    context: MixerContext

    @property
    def is_watched(self) -> bool:
        """Whether `transformer_jax.viewing.attention` asks for the attention weights."""
        return self.is_mutable_collection("intermediates") and not self.is_initializing()


class Mixer(MixerModule):
    """Self-mixing along the sequence, in the encoder or the decoder.

    Attributes:
        position: the stack's position scheme.
    """

    position: Position

    def __call__(self, x_BLD: Array, mask_BL: Array) -> Array:
        """Mixes [B, L, D] along L; padding (mask False) changes nothing at real tokens."""
        raise NotImplementedError

    def init_state(self, batch: int, max_length: int) -> State:
        """The state before the first token, for up to `max_length` tokens.

        Every leaf leads with `batch`. Keys and values of all tokens so far are best kept in an
        `ops.key_value_cache.KeyValueCache`, which leads with the tokens.
        """
        raise NotImplementedError

    def step(self, x_BD: Array, state: State, position: Array) -> tuple[Array, State]:
        """One token: x [B, D] at scalar `position` -> ([B, D], the next state)."""
        raise NotImplementedError

    def in_heads(self, x: Array) -> Array:
        """[..., H * K] -> [..., H, K] in float32, by the heads of the context."""
        return x.astype(jnp.float32).reshape(*x.shape[:-1], self.context.num_heads, -1)


@dataclass(frozen=True)
class CrossMixerConfig:
    """Options of a mixer that reads the memory; a subclass in the mixer's file."""

    module: ClassVar[type["CrossMixer"]]  #: what `build` makes
    #: True if the cost grows with the product of the two lengths
    quadratic: ClassVar[bool] = False

    def check(self, context: MixerContext) -> None:
        """As `MixerConfig.check`."""

    def build(self, context: MixerContext) -> "CrossMixer":
        """The Flax module, not yet initialised."""
        return self.module(self, context)


class CrossMixer(MixerModule):
    """Reads the encoder's memory from the decoder.

    The memory is projected once (`project`). The queries of all beams of a sentence
    are on the length axis of `read`, so the memory is never copied for a beam.
    """

    def __call__(self, x_BTD: Array, memory_BMD: Array, mask_BM: Array) -> Array:
        """Both in one call, as a model's layer makes them."""
        return self.read(x_BTD, self.project(memory_BMD, mask_BM))

    def project(self, memory_BMD: Array, mask_BM: Array) -> State:
        """What `read` needs of the memory; every leaf leads with B."""
        raise NotImplementedError

    def read(self, x_BTD: Array, projected: State) -> Array:
        """Each of the T queries reads the memory on its own: [B, T, D] -> [B, T, D]."""
        raise NotImplementedError
