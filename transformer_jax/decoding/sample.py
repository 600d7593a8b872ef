"""Sampling translations: temperature, top-k (Fan et al. 2018, arXiv:1805.04833), top-p or
nucleus sampling (Holtzman et al. 2020, arXiv:1904.09751) and epsilon sampling (Hewitt et al. 2022,
arXiv:2210.15191; for translation Freitag et al. 2023, arXiv:2305.09860).

The logits are divided by the temperature, cut to the k most probable tokens, then to the smallest
set of those whose renormalised probability reaches p, then to those whose renormalised probability
is at least epsilon, and one token is drawn from the rest. The random key of a draw depends only on
the seed, the sentence's own number, the sample and the position, so a sample does not depend on the
sentence's batch-mates or its row. Reported log-probabilities are the model's own, not those of the
cut distribution.
"""

from dataclasses import dataclass, replace
from typing import Annotated, Self

import jax
import jax.numpy as jnp
from annotated_types import Ge, Gt, Le, Lt
from jax import Array
from pydantic import PositiveInt

from transformer_jax.decoding.base import Hypotheses, Limits, Method, State, Step
from transformer_jax.decoding.rollout import rollout
from transformer_jax.ops.top_k import first_argmax, top_k_of_rows


@dataclass(frozen=True)
class Sample(Method):
    """Independent samples from the model's distribution, sorted by score."""

    num_samples: PositiveInt = 1  #: translations drawn for each sentence
    temperature: Annotated[float, Ge(1e-6)] = 1.0
    #: logits are divided by it; below 1 sharpens
    top_k: PositiveInt | None = None  #: draw only from the k most probable tokens; none = all
    top_p: Annotated[float, Gt(0), Le(1)] = 1.0
    #: draw only from the smallest set of tokens of this probability
    epsilon: Annotated[float, Ge(0), Lt(1)] = 0.0
    #: draw only tokens of at least this probability; the most probable one stays
    seed: Annotated[int, Ge(0), Lt(2**32)] = 0  #: the same seed gives the same translations
    length_penalty: float = Method.length_penalty
    #: changes the reported score, and so the order, only

    @property
    def num_hypotheses(self) -> int:
        return self.num_samples

    def with_hypotheses(self, n: int) -> Self:
        return replace(self, num_samples=max(n, self.num_samples))

    def search(self, step: Step, state: State, limits: Limits) -> Hypotheses:
        def choose(logits_BZV: Array, position: Array, keys_BZ: Array) -> Array:
            heated_BZV = logits_BZV / self.temperature
            logits_BZk, tokens_BZk = truncate(heated_BZV, self.top_k, self.top_p, self.epsilon)
            drawn_BZ = draw(keys_BZ, position, logits_BZk)
            if tokens_BZk is None:
                return drawn_BZ
            return jnp.take_along_axis(tokens_BZk, drawn_BZ[:, :, None], axis=2)[:, :, 0]

        keys_BZ = sample_keys(limits.key, limits.sentence_ids_B, self.num_samples)
        return rollout(self, step, choose, state, limits, keys_BZ)


def sample_keys(key: Array, sentence_ids_B: Array, num_samples: int) -> Array:
    """Random keys [B, num_samples] that depend on a sentence's number and not on its row."""
    fold_in_all = jax.vmap(jax.random.fold_in, (None, 0))
    keys_B = fold_in_all(key, sentence_ids_B)
    return jax.vmap(fold_in_all, (0, None))(keys_B, jnp.arange(num_samples))


def draw(keys_BZ: Array, position: Array, logits_BZV: Array) -> Array:
    """A draw from softmax(logits) for each hypothesis: indices [B, Z], int32."""
    size = logits_BZV.shape[-1]

    def noise(key: Array) -> Array:
        return jax.random.gumbel(jax.random.fold_in(key, position), (size,))

    # The Gumbel-max trick: the argmax is a draw from softmax(logits).
    return first_argmax(logits_BZV + jax.vmap(jax.vmap(noise))(keys_BZ))


def truncate(
    logits: Array, top_k: int | None = None, top_p: float = 1.0, epsilon: float = 0.0
) -> tuple[Array, Array | None]:
    """What top-k, top-p and epsilon leave of `logits` [..., V].

    Returns:
      (logits [..., k], tokens [..., k] int32), sorted by falling logit, with -inf for
      what top-p and epsilon remove; tokens is None where nothing was sorted and k = V.
    """
    vocab_size = logits.shape[-1]
    k = min(top_k or vocab_size, vocab_size)
    kept, tokens = logits, None
    if k < vocab_size or top_p < 1.0:
        kept, tokens = top_k_of_rows(logits, k)
    if top_p < 1.0:
        probabilities = jax.nn.softmax(kept, axis=-1)
        before = jnp.cumsum(probabilities, axis=-1) - probabilities
        # The first token always stays, even where rounding makes `before` not quite 0.
        outside = (before >= top_p) & (jnp.arange(kept.shape[-1]) > 0)
        kept = jnp.where(outside, -jnp.inf, kept)
    if epsilon > 0.0:
        improbable = jax.nn.softmax(kept, axis=-1) < epsilon
        is_largest = kept == kept.max(axis=-1, keepdims=True)
        kept = jnp.where(improbable & ~is_largest, -jnp.inf, kept)
    return kept, tokens
