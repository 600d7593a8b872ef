"""A given start of the translation: the search continues it.

While a sentence's prefix lasts, its next piece is certain: log-probability 0, all others -inf.
So the search of any method finds the prefix and what follows it, and a log-probability is that of
the pieces after the prefix, given the prefix. Hugging Face forces a first piece in the same way
(`ForcedBOSTokenLogitsProcessor`). The prefix counts in the length of a hypothesis.
"""

import jax.numpy as jnp
from jax import Array

from transformer_jax.decoding.base import State, Step
from transformer_jax.ops.key_value_cache import PerSentence
from transformer_jax.vocabulary import PAD_ID


def force_prefix(step: Step, state: State, prefix_BT: Array) -> tuple[Step, State]:
    """The step and the first state of a model whose targets begin with `prefix_BT`.

    Args:
      step: the model.
      state: its state before position 0.
      prefix_BT: int32, the first pieces of each sentence's target, then PAD, for all positions.
        A sentence's limit on length must leave room for EOS after its prefix.
    """

    def forced(tokens_BZ: Array, position: Array, state: State) -> tuple[Array, State]:
        prefix, inner = state
        logits_BZV, inner = step(tokens_BZ, position, inner)
        next_B11 = prefix.values[:, position][:, None, None]
        is_next_B1V = jnp.arange(logits_BZV.shape[-1]) == next_B11
        certain_B1V = jnp.where(is_next_B1V, 0.0, -jnp.inf)
        logits_BZV = jnp.where(next_B11 == PAD_ID, logits_BZV, certain_B1V)
        return logits_BZV, (prefix, inner)

    return forced, (PerSentence(prefix_BT), state)
