"""A given start of the translation: the search continues it.

While a sentence's prefix lasts, its next piece is certain: log-probability 0, all others -inf.
So the search of any method finds the prefix and what follows it, and a log-probability is that of
the pieces after the prefix, given the prefix. Hugging Face forces a first piece in the same way
(`ForcedBOSTokenLogitsProcessor`). The prefix counts in the length of a hypothesis.
"""

import jax
import jax.numpy as jnp

from transformer_jax.decoding.base import State, Step
from transformer_jax.vocabulary import PAD_ID


def force_prefix(step: Step, prefix_BT: jax.Array) -> Step:
    """The step of a model whose targets begin with `prefix_BT`.

    Args:
      step: the model.
      prefix_BT: int32, the first pieces of each sentence's target, then PAD, for all positions.
        A sentence's limit on length must leave room for EOS after its prefix.
    """

    def forced(tokens_BZ: jax.Array, position: jax.Array, state: State) -> tuple[jax.Array, State]:
        logits_BZV, state = step(tokens_BZ, position, state)
        next_B11 = prefix_BT[:, position][:, None, None]
        is_next_B1V = jnp.arange(logits_BZV.shape[-1]) == next_B11
        certain_B1V = jnp.where(is_next_B1V, 0.0, -jnp.inf)
        return jnp.where(next_B11 == PAD_ID, logits_BZV, certain_B1V), state

    return forced
