"""The interface of a decoding method, and what every method returns.

Axes in this package: B sentences, Z hypotheses of a sentence, V vocabulary, T target length.
"""

import abc
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any, Literal, NamedTuple, Self

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from transformer_jax.ops.key_value_cache import map_state
from transformer_jax.ops.top_k import top_k_of_rows
from transformer_jax.vocabulary import BOS_ID, PAD_ID

#: A decoder state: a pytree in which every leaf leads with [B, Z], or is of a `KeyValueCache` or
#: of a `PerSentence`.
State = Any

#: `step(tokens_BZ, position, state) -> (logits_BZV, state)`: reads the token *before*
#: `position` (BOS at position 0) and returns the logits of the token *at* `position`. All that it
#: knows of a sentence is in the state: a search may go on with some of the rows.
Step = Callable[[Array, Array, State], tuple[Array, State]]


#: See `Method.penalties`.
LengthPenaltyForm = Literal["gnmt", "power"]


class Hypotheses(NamedTuple):
    """Translations of B sentences, Z each, best first.

    A place that no hypothesis fills (fewer than Z exist, or were asked for) has length 0 and
    score -inf.
    """

    tokens: Array  #: [B, Z, T] int32, ends with EOS, then PAD
    lengths: Array  #: [B, Z] int32, EOS included
    scores: Array  #: [B, Z] float32, log_probs / length_penalty(lengths)
    log_probs: Array  #: [B, Z] float32, the model's, EOS included


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class Limits:
    """What is asked for, for each of B sentences. Under jit, `max_length` is static."""

    #: int32, each sentence's longest target, EOS included, at most `max_length`. A row with 0 is
    #: padding and yields nothing.
    max_lengths_B: Array
    #: int32, a number for each sentence, such as its line in the input. Random numbers depend on
    #: it and not on the row.
    sentence_ids_B: Array
    key: Array  #: a JAX random key
    max_length: int = field(metadata={"static": True})  #: T, the length of the result
    #: int32, from 1 to Z, how many hypotheses of each sentence are asked for. They are the best of
    #: those that a search for all Z returns; the other places stay empty. A search may end once it
    #: is sure of these. None: all Z.
    num_best_B: Array | None = None
    #: no token is one of these; they keep their probabilities
    never: tuple[int, ...] = field(default=(PAD_ID, BOS_ID), metadata={"static": True})

    def allowed(self, vocab_size: int) -> Array:
        """Which tokens may be chosen, bool [V]."""
        return jnp.ones(vocab_size, bool).at[jnp.array(self.never)].set(False)


class Method(abc.ABC):
    """A decoding method: a frozen dataclass whose fields are the method's options.

    A method sees a model only through its step function. `transformer_jax/testing/methods.py` says
    what every method must satisfy.
    """

    length_penalty: float = 0.6
    length_penalty_form: LengthPenaltyForm = "gnmt"
    seed: int = 0  #: a method that draws random numbers makes this an option

    @property
    @abc.abstractmethod
    def num_hypotheses(self) -> int:
        """Z: hypotheses that the method keeps, and returns, for each sentence."""

    @abc.abstractmethod
    def with_hypotheses(self, n: int) -> Self:
        """This method with at least `n` hypotheses.

        Raises:
          UserError: the method cannot find so many.
        """

    @abc.abstractmethod
    def search(self, step: Step, state: State, limits: Limits) -> Hypotheses:
        """Translates B sentences; a pure function, to be called under jit.

        Args:
          step: the model, see `Step`; called with tokens [B, Z].
          state: the decoder's state before position 0.
          limits: how long, how many, and what random numbers depend on.

        Returns:
          Hypotheses [B, Z], best first.
        """

    def penalties(self, max_length: int) -> np.ndarray:
        """Divisors of the log-probability for lengths 0..max_length, float32 [max_length + 1].

        gnmt: lp(n) = ((5 + n) / 6) ** alpha, from Wu et al. 2016, arXiv:1609.08144, eq. 14.
        power: lp(n) = n ** alpha, as in Hugging Face's `generate` and CTranslate2; 1 gives the
        mean of the log-probabilities.

        n counts a forced prefix and EOS, and not BOS. alpha = 0 ranks by log-probability; larger
        values favour longer translations.
        """
        lengths = np.arange(max_length + 1, dtype=np.float64)
        # No hypothesis has length 0, and 0 ** alpha is not a divisor.
        is_gnmt = self.length_penalty_form == "gnmt"
        bases = (5.0 + lengths) / 6.0 if is_gnmt else np.maximum(lengths, 1.0)
        return (bases**self.length_penalty).astype(np.float32)

    @property
    def static(self) -> Self:
        """This method with seed 0, for use as a static argument of jit.

        The seed reaches `search` as `key`, so methods that differ only in it share a program.
        """
        return replace(self, seed=0) if self.seed else self  # type: ignore[type-var]


def selectable(state: State, batch: int, num_hypotheses: int) -> State:
    """The first state of a search that calls `select_hypotheses`."""
    return map_state(lambda leaf: leaf, state, lambda cache: cache.for_beams(batch, num_hypotheses))


def select_hypotheses(state: State, parents_BZ: Array) -> State:
    """The state in which hypothesis z of a sentence continues hypothesis parents[z] of it."""

    def select(leaf: Array) -> Array:
        indices = parents_BZ.reshape(parents_BZ.shape + (1,) * (leaf.ndim - 2))
        return jnp.take_along_axis(leaf, indices, axis=1, mode="promise_in_bounds")

    return map_state(select, state, lambda cache: cache.select(parents_BZ))


def best_first(hypotheses: Hypotheses, num_best_B: Array | None = None) -> Hypotheses:
    """Each sentence's hypotheses, sorted by falling score, and of these the first `num_best_B`.

    The other places are emptied. None: all hypotheses stay.
    """
    scores_BZ, order_BZ = top_k_of_rows(hypotheses.scores, hypotheses.scores.shape[1])
    tokens = jnp.take_along_axis(hypotheses.tokens, order_BZ[:, :, None], axis=1)
    lengths = jnp.take_along_axis(hypotheses.lengths, order_BZ, axis=1)
    log_probs = jnp.take_along_axis(hypotheses.log_probs, order_BZ, axis=1)
    if num_best_B is None:
        return Hypotheses(tokens, lengths, scores_BZ, log_probs)
    kept_BZ = jnp.arange(scores_BZ.shape[1]) < num_best_B[:, None]
    return Hypotheses(
        tokens=jnp.where(kept_BZ[:, :, None], tokens, PAD_ID),
        lengths=jnp.where(kept_BZ, lengths, 0),
        scores=jnp.where(kept_BZ, scores_BZ, -jnp.inf),
        log_probs=jnp.where(kept_BZ, log_probs, -jnp.inf),
    )
