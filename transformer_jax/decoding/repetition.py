"""Controls of repetition: no n-gram twice, and a penalty on pieces that were generated already.

With y the pieces before a position, BOS and a forced prefix included:

* `no_repeat_ngram` = n: a piece that would end an n-gram which y already has gets the logit -inf
  (Paulus et al. 2017, arXiv:1705.04304, section 2.5, with n = 3).
* `penalty` = c: the logit of each piece in y is divided by c if it is positive, and multiplied by
  c if it is negative (Keskar et al. 2019, arXiv:1909.05858, section 4.1).

Both are Hugging Face's `NoRepeatNGramLogitsProcessor` and `RepetitionPenaltyLogitsProcessor`. They
change the distribution that a method searches, so log-probabilities are normalised over what is
left, as in CTranslate2. (Hugging Face does not normalise again in beam search, unless
`renormalize_logits` is set.)
"""

from dataclasses import dataclass

import jax
import jax.numpy as jnp
from jax import Array, lax

from transformer_jax.decoding.base import State, Step
from transformer_jax.vocabulary import BOS_ID


@dataclass(frozen=True)
class Repetition:
    """How much repetition is allowed; the default allows all."""

    no_repeat_ngram: int = 0  #: n; 0 = off
    penalty: float = 1.0  #: c; 1 = off

    def __bool__(self) -> bool:
        return self.no_repeat_ngram > 0 or self.penalty != 1.0


def control_repetition(
    step: Step, state: State, repetition: Repetition, shape_BZT: tuple[int, int, int]
) -> tuple[Step, State]:
    """The step and the first state of a model that repeats itself less.

    Args:
      step: the model.
      state: its state before position 0.
      repetition: what is allowed.
      shape_BZT: sentences, hypotheses and positions.
    """

    def controlled(tokens_BZ: Array, position: Array, state: State) -> tuple[Array, State]:
        inner, history_BZT = state
        logits_BZV, inner = step(tokens_BZ, position, inner)
        history_BZT = lax.dynamic_update_index_in_dim(history_BZT, tokens_BZ, position, axis=2)
        control = jax.vmap(jax.vmap(_control, (0, 0, None, None)), (0, 0, None, None))
        return control(logits_BZV, history_BZT, position, repetition), (inner, history_BZT)

    # What is not generated yet is BOS, which is never generated.
    return controlled, (state, jnp.full(shape_BZT, BOS_ID, jnp.int32))


def _control(logits_V: Array, history_T: Array, position: Array, repetition: Repetition) -> Array:
    """The logits after `history_T[: position + 1]`."""
    if repetition.penalty != 1.0:
        seen = logits_V[history_T]
        penalised = jnp.where(seen < 0, seen * repetition.penalty, seen / repetition.penalty)
        logits_V = logits_V.at[history_T].set(penalised)
    context = repetition.no_repeat_ngram - 1
    num_windows = history_T.shape[0] - context
    if context < 0 or num_windows <= 0:
        return logits_V
    # Window w has the pieces w .. w + context; it forbids its last if the others came again.
    ends_W = context + jnp.arange(num_windows)
    forbids_W = ends_W <= position
    for place in range(context):
        last = history_T[position - context + 1 + place]
        forbids_W &= history_T[place : place + num_windows] == last
    return logits_V.at[history_T[context:]].min(jnp.where(forbids_W, -jnp.inf, jnp.inf))
