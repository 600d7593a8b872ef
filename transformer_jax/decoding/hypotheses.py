"""What every search returns, and how a hypothesis is scored.

Axes in this package: B sentences, Z hypotheses of a sentence, V vocabulary, T target length.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from transformer_jax.ops.sharding import top_k_of_rows

#: A decoder state: a pytree in which every leaf leads with [B, Z].
State = Any

#: `step(tokens_BZ, position, state) -> (logits_BZV, state)`: reads the token *before*
#: `position` (BOS at position 0) and gives the logits of the token *at* `position`.
Step = Callable[[jax.Array, jax.Array, State], tuple[jax.Array, State]]


class Hypotheses(NamedTuple):
    """Translations of B sentences, Z each, best first.

    A place that no hypothesis fills (fewer than Z exist) has length 0 and score -inf.
    """

    tokens: jax.Array  #: [B, Z, T] int32, ends with EOS, then PAD
    lengths: jax.Array  #: [B, Z] int32, EOS included
    scores: jax.Array  #: [B, Z] float32, log_probs / length_penalty(lengths)
    log_probs: jax.Array  #: [B, Z] float32, the model's, EOS included


def length_penalties(max_length: int, alpha: float) -> np.ndarray:
    """Divisors of the log-probability for lengths 0..max_length, float32 [max_length + 1].

    lp(n) = ((5 + n) / 6) ** alpha, from Wu et al. 2016, arXiv:1609.08144, eq. 14.
    alpha = 0 ranks by log-probability; larger values favour longer translations.
    """
    lengths = np.arange(max_length + 1, dtype=np.float64)
    return (((5.0 + lengths) / 6.0) ** alpha).astype(np.float32)


def best_first(hypotheses: Hypotheses) -> Hypotheses:
    """The same hypotheses, each sentence's sorted by falling score."""
    scores_BZ, order_BZ = top_k_of_rows(hypotheses.scores, hypotheses.scores.shape[1])
    return Hypotheses(
        tokens=jnp.take_along_axis(hypotheses.tokens, order_BZ[:, :, None], axis=1),
        lengths=jnp.take_along_axis(hypotheses.lengths, order_BZ, axis=1),
        scores=scores_BZ,
        log_probs=jnp.take_along_axis(hypotheses.log_probs, order_BZ, axis=1),
    )
