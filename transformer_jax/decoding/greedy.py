"""Greedy decoding: the most probable piece at each step, until that is EOS."""

import jax

from transformer_jax.decoding.hypotheses import Hypotheses, State, Step
from transformer_jax.decoding.rollout import first_argmax, rollout


def greedy(
    step: Step,
    state: State,
    max_lengths_B: jax.Array,
    *,
    max_length: int,
    length_penalty: float = 0.6,
) -> Hypotheses:
    """One hypothesis a sentence, Hypotheses [B, 1]; arguments as `beam_search`'s.

    `length_penalty` changes the reported score only.
    """
    return rollout(
        step,
        lambda logits_BZV, position: first_argmax(logits_BZV),
        state,
        max_lengths_B,
        max_length=max_length,
        num_hypotheses=1,
        length_penalty=length_penalty,
    )
