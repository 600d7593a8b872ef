"""What translates: one model, or several together. Decoding does not distinguish the two.

Several models predict the next piece by the mean of what they predict, each from its own encoder
and its own decoder state:

* `log_probs`: p(y) is proportional to exp(mean over models of log p_i(y)), the geometric mean;
* `probs`: p(y) = mean over models of p_i(y).

They share their vocabularies; anything else may differ.
"""

import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import jax
import jax.numpy as jnp
from jax import Array
from jax.sharding import Mesh

from transformer_jax.errors import UserError
from transformer_jax.models import api, inside
from transformer_jax.models.api import AnyArray, State, WeightForm
from transformer_jax.models.config import ModelConfig
from transformer_jax.parallel.mesh import shardings_of

#: What is averaged.
Mean = Literal["log_probs", "probs"]


@dataclass(frozen=True)
class Model:
    """The pure functions of one model or of several; hashable, as a static argument of jit is.

    Parameters, states and sentences are what a model makes of them; of several they are tuples,
    one part a member. See the functions of the same names in `models.api`.
    """

    members: tuple[ModelConfig, ...]
    mean: Mean = "log_probs"

    def __post_init__(self) -> None:
        sizes = {(each.source_vocab_size, each.target_vocab_size) for each in self.members}
        if len(sizes) != 1:
            raise UserError(
                f"the models of an ensemble have vocabularies of {sorted(sizes)} pieces"
            )

    @property
    def is_one(self) -> bool:
        """Whether it has one member."""
        return len(self.members) == 1

    def _split(self, tree: Any) -> Sequence[Any]:
        """The part of each member: of parameters, a state or a sentence."""
        return (tree,) if self.is_one else tree

    def _join(self, parts: Sequence[Any]) -> Any:
        """The inverse of `_split`."""
        return parts[0] if self.is_one else tuple(parts)

    def _mean(self, logits: Sequence[Array]) -> Array:
        """The logits of the mean of what the members predict, from the logits of each."""
        if self.is_one:
            return logits[0]
        log_probs = [jax.nn.log_softmax(each, axis=-1) for each in logits]
        add = jnp.add if self.mean == "log_probs" else jnp.logaddexp
        total = functools.reduce(add, log_probs)
        return total / len(log_probs) if self.mean == "log_probs" else total

    @property
    def max_length(self) -> int:
        """The most tokens on a side, EOS included."""
        return min(config.max_length for config in self.members)

    @property
    def target_vocab_size(self) -> int:
        """V."""
        size = self.members[0].target_vocab_size
        assert size is not None, "the config of a trained model has its vocabulary sizes"
        return size

    def abstract_params(self, mesh: Mesh) -> Any:
        """The parameters as shapes with shardings."""
        return self._join(self._map(lambda m: api.abstract_params(m, mesh)))

    def for_decoding(self, params: Any, weights: WeightForm) -> Any:
        """Parameters in the form that decoding holds."""
        return self._join(self._map(lambda m, p: api.for_decoding(m, p, weights), params))

    def held(self, params: Any, weights: WeightForm, mesh: Mesh | None) -> Any:
        """What `for_decoding` gives, laid out on the mesh."""
        shardings = None
        if mesh is not None:
            # Those that are laid out already stay where they are.
            params = jax.device_put(params, shardings_of(self.abstract_params(mesh)))
            shardings = shardings_of(self.abstract_held(weights, mesh))
        convert = jax.jit(Model.for_decoding, static_argnums=(0, 2), out_shardings=shardings)
        return convert(self, params, weights)

    def abstract_held(self, weights: WeightForm, mesh: Mesh) -> Any:
        """What `for_decoding` gives, as shapes with shardings."""
        return self._join(self._map(lambda m: api.abstract_held(m, weights, mesh)))

    def apply(self, params: Any, *arrays: AnyArray) -> Array:
        """Logits [B, T, V]: log-probabilities up to a constant of each position.

        The arrays are source_BS, source_mask_BS, target_in_BT and target_mask_BT.
        """
        return self._mean(self._map(lambda m, p: api.apply(m, p, *arrays), params))

    def check_alignment(self) -> None:
        """Raises UserError where `alignment` has nothing to read."""
        self._map(inside.check_alignment)

    def alignment(self, params: Any, *arrays: AnyArray) -> Array:
        """How much each target piece uses each source piece, [B, T, S]; the arrays of `apply`."""
        looks = self._map(lambda m, p: inside.alignment(m, p, *arrays), params)
        return functools.reduce(jnp.add, looks) / len(looks)

    def encode(
        self, params: Any, *arrays: AnyArray, max_length: int, beam_size: int
    ) -> tuple[State, State]:
        """(sentence, state): what never changes, and the state before position 0.

        The arrays are source_BS and source_mask_BS.
        """
        encode = functools.partial(api.encode, max_length=max_length, beam_size=beam_size)
        encoded = self._map(lambda m, p: encode(m, p, *arrays), params)
        sentences, states = zip(*encoded, strict=True)
        return self._join(sentences), self._join(states)

    def decode_step(
        self, params: Any, tokens_BZ: AnyArray, position: AnyArray, state: State, sentence: State
    ) -> tuple[Array, State]:
        """Logits [B, Z, V] of the next token, as in `apply`, and the next state."""

        def step(config: ModelConfig, p: Any, own: State, known: State) -> Any:
            return api.decode_step(config, p, tokens_BZ, position, own, known)

        logits, states = zip(*self._map(step, params, state, sentence), strict=True)
        return self._mean(logits), self._join(states)

    def _map(self, function: Callable[..., Any], *trees: Any) -> list[Any]:
        """`function(config, part of each tree, ...)` of each member."""
        parts = map(self._split, trees)
        return [function(*each) for each in zip(self.members, *parts, strict=True)]
