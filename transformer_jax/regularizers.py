"""Regularizers of training: several passes over a batch, whose predictions should agree.

A regularizer asks for P passes over each sentence pair, each with dropout of its own. They are
computed together, as P times as many rows. Its loss of a target token is a function of the passes'
predictions p_1 ... p_P of this token and of their cross-entropies CE_1 ... CE_P (label smoothing
included). A step takes the memory and the time of a batch P times as large.

A variant is one class and one line in `REGULARIZERS`.
"""

from dataclasses import dataclass
from typing import ClassVar

import jax
import jax.numpy as jnp

from transformer_jax.config_types import NonNegative, Rate
from transformer_jax.ops.dropout import kept


class Regularizer:
    """What all regularizers share. A subclass is a frozen dataclass.

    Attributes:
        passes: number of passes over each sentence pair; the first gets the input as it is.
    """

    passes: ClassVar[int]

    def kept(self, key: jax.Array, rows: int, length: int) -> jax.Array | None:
        """False at the input positions whose word embedding is zero: [rows, P, length] bool.

        None: all are kept.

        Args:
            key: a random key.
            rows: sentences on one side, of the source or of the decoder's input.
            length: of each.
        """
        del key, rows, length
        return None

    def token_loss(self, losses_NP: jax.Array, log_probs_NPV: jax.Array) -> jax.Array:
        """The loss of each of N target tokens, [N] in nats, differentiated with respect to both.

        Args:
            losses_NP: the cross-entropy of each pass, float32.
            log_probs_NPV: its log-probabilities of all V pieces, float32.
        """
        raise NotImplementedError


@dataclass(frozen=True)
class NoRegularizer(Regularizer):
    """The cross-entropy alone."""

    # It has no `token_loss`: the cross-entropy of one pass needs no log-probabilities.
    passes: ClassVar[int] = 1


@dataclass(frozen=True)
class RDrop(Regularizer):
    """R-Drop: two passes with different dropout (Wu et al. 2021, arXiv:2106.14448).

        (CE_1 + CE_2) / 2 + alpha/2 (KL(p_1 || p_2) + KL(p_2 || p_1))

    It needs dropout: without, both passes are the same. The formula is that of the authors'
    published example. Their script for translation takes CE_1 + CE_2 in place of the mean: its
    alpha = 5 weighs as much as 2.5 here.
    """

    alpha: NonNegative = 2.5  #: weight of the divergence between the two passes
    passes: ClassVar[int] = 2

    def token_loss(self, losses_NP: jax.Array, log_probs_NPV: jax.Array) -> jax.Array:
        p_NV, q_NV = log_probs_NPV[:, 0], log_probs_NPV[:, 1]
        both_ways_N = ((jnp.exp(p_NV) - jnp.exp(q_NV)) * (p_NV - q_NV)).sum(axis=-1)
        return losses_NP.mean(axis=1) + self.alpha / 2 * both_ways_N


@dataclass(frozen=True)
class Cutoff(Regularizer):
    """Token cutoff: a second pass without some of the words (Shen et al. 2020, arXiv:2009.13818).

        CE_1 + cross_entropy CE_2 + divergence (KL(p_1 || m) + KL(p_2 || m)) / 2,
        m = (p_1 + p_2) / 2

    In the second pass, the word embeddings at a random share of the positions are zero, in the
    source and in the decoder's input. Their positions are still seen. Any position may be cut, also
    BOS, EOS and tags. As in the authors' code for translation, each is cut independently; that code
    puts UNK there, the paper zeros.
    """

    rate: Rate = 0.05  #: share of the source and target positions that are cut
    cross_entropy: NonNegative = 1.0  #: weight of the cut pass's cross-entropy
    divergence: NonNegative = 5.0  #: weight of the Jensen-Shannon divergence of the two passes
    passes: ClassVar[int] = 2

    def kept(self, key: jax.Array, rows: int, length: int) -> jax.Array:
        second = kept(key, (rows, 1, length), self.rate)
        return jnp.concatenate([jnp.ones_like(second), second], axis=1)

    def token_loss(self, losses_NP: jax.Array, log_probs_NPV: jax.Array) -> jax.Array:
        p_NV, q_NV = log_probs_NPV[:, 0], log_probs_NPV[:, 1]
        m_NV = jnp.logaddexp(p_NV, q_NV) - jnp.log(2.0)
        js_N = (jnp.exp(p_NV) * (p_NV - m_NV) + jnp.exp(q_NV) * (q_NV - m_NV)).sum(axis=-1) / 2
        cross_entropy_N = losses_NP[:, 0] + self.cross_entropy * losses_NP[:, 1]
        return cross_entropy_N + self.divergence * js_N


NO_REGULARIZER = NoRegularizer()

REGULARIZERS: dict[str, type[Regularizer]] = {
    "none": NoRegularizer,
    "rdrop": RDrop,
    "cutoff": Cutoff,
}
