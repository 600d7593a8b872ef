"""Sampling translations: temperature, top-k (Fan et al. 2018, arXiv:1805.04833) and
top-p or nucleus sampling (Holtzman et al. 2020, arXiv:1904.09751).

The logits are divided by the temperature, cut to the k most probable pieces, then to
the smallest set of those whose renormalised probability reaches p, and one piece is drawn
from what is left. The random key of a draw depends on the seed, the sentence's own
number, the sample and the position, and on nothing else, so a sample does not depend on
the sentence's batch-mates or its row. Reported log-probabilities are the model's own, not
those of the cut distribution.
"""

import jax
import jax.numpy as jnp

from transformer_jax.decoding.hypotheses import Hypotheses, State, Step, best_first
from transformer_jax.decoding.rollout import first_argmax, rollout
from transformer_jax.ops.sharding import top_k_of_rows


def sample(
    step: Step,
    state: State,
    max_lengths_B: jax.Array,
    sentence_ids_B: jax.Array,
    key: jax.Array,
    *,
    max_length: int,
    num_samples: int = 1,
    temperature: float = 1.0,
    top_k: int = 0,
    top_p: float = 1.0,
    length_penalty: float = 0.6,
) -> Hypotheses:
    """`num_samples` independent samples a sentence, sorted by score: Hypotheses [B, num_samples].

    Args:
      step: see `Step`.
      state: the decoder's state before position 0, every leaf [B, num_samples, ...].
      max_lengths_B: int32, each sentence's longest target, EOS included.
      sentence_ids_B: int32, a number for each sentence, e.g. its line in the input.
      key: a JAX random key.
      max_length: T, the length of the result.
      num_samples: Z.
      temperature: above 0; towards 0 this becomes greedy decoding.
      top_k: 0 for no limit.
      top_p: 1 for no limit.
      length_penalty: changes the reported score, and so the order, only.
    """

    def key_of(sentence_id: jax.Array, number: jax.Array) -> jax.Array:
        return jax.random.fold_in(jax.random.fold_in(key, sentence_id), number)

    keys_BZ = jax.vmap(lambda i: jax.vmap(lambda z: key_of(i, z))(jnp.arange(num_samples)))(
        sentence_ids_B
    )

    def choose(logits_BZV: jax.Array, position: jax.Array) -> jax.Array:
        logits_BZk, tokens_BZk = truncate(logits_BZV / temperature, top_k=top_k, top_p=top_p)
        size = logits_BZk.shape[-1]

        def noise(sample_key: jax.Array) -> jax.Array:
            return jax.random.gumbel(jax.random.fold_in(sample_key, position), (size,))

        # The Gumbel-max trick: the argmax is a draw from softmax(logits).
        drawn_BZ = first_argmax(logits_BZk + jax.vmap(jax.vmap(noise))(keys_BZ))
        if tokens_BZk is None:
            return drawn_BZ
        return jnp.take_along_axis(tokens_BZk, drawn_BZ[:, :, None], axis=2)[:, :, 0]

    return best_first(
        rollout(
            step,
            choose,
            state,
            max_lengths_B,
            max_length=max_length,
            num_hypotheses=num_samples,
            length_penalty=length_penalty,
        )
    )


def truncate(
    logits: jax.Array, *, top_k: int = 0, top_p: float = 1.0
) -> tuple[jax.Array, jax.Array | None]:
    """What top-k and top-p leave of `logits` [..., V].

    Returns:
      (logits [..., k], tokens [..., k] int32), sorted by falling logit, with -inf for
      what top-p removes; tokens is None where nothing was sorted and k = V.
    """
    vocab_size = logits.shape[-1]
    if (top_k == 0 or top_k >= vocab_size) and top_p >= 1.0:
        return logits, None
    kept, tokens = top_k_of_rows(logits, min(top_k or vocab_size, vocab_size))
    if top_p < 1.0:
        probabilities = jax.nn.softmax(kept, axis=-1)
        before = jnp.cumsum(probabilities, axis=-1) - probabilities
        # The first piece always stays, even where rounding makes `before` not quite 0.
        outside = (before >= top_p) & (jnp.arange(kept.shape[-1]) > 0)
        kept = jnp.where(outside, -jnp.inf, kept)
    return kept, tokens
