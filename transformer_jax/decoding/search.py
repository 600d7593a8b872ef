"""A `DecodeConfig`, carried out."""

import jax

from transformer_jax.decoding.beam import beam_search
from transformer_jax.decoding.config import DecodeConfig
from transformer_jax.decoding.greedy import greedy
from transformer_jax.decoding.hypotheses import Hypotheses, State, Step
from transformer_jax.decoding.sampling import sample


def decode(
    config: DecodeConfig,
    step: Step,
    state: State,
    max_lengths_B: jax.Array,
    sentence_ids_B: jax.Array,
    key: jax.Array,
    *,
    max_length: int,
) -> Hypotheses:
    """Hypotheses [B, config.num_hypotheses] by the configured method; jit-able.

    `state` leads with [B, config.num_hypotheses]; `sentence_ids_B` numbers the sentences and
    `key` is the random key of `config.seed`, both for sampling only. The other arguments
    are `beam_search`'s.
    """
    if config.method == "sample":
        return sample(
            step,
            state,
            max_lengths_B,
            sentence_ids_B,
            key,
            max_length=max_length,
            num_samples=config.num_samples,
            temperature=config.temperature,
            top_k=config.top_k,
            top_p=config.top_p,
            length_penalty=config.length_penalty,
        )
    if config.method == "greedy":
        return greedy(
            step, state, max_lengths_B, max_length=max_length, length_penalty=config.length_penalty
        )
    return beam_search(
        step,
        state,
        max_lengths_B,
        max_length=max_length,
        beam_size=config.beam_size,
        length_penalty=config.length_penalty,
    )
