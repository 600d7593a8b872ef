"""Left-to-right generation without backtracking, which greedy decoding and sampling share."""

from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from transformer_jax.decoding.base import Hypotheses, State, Step
from transformer_jax.vocabulary import BOS_ID, EOS_ID, PAD_ID

#: `choose(logits_BZV, position) -> tokens_BZ`; in the logits PAD and BOS are -inf.
Choose = Callable[[jax.Array, jax.Array], jax.Array]


class _Rollout(NamedTuple):
    position: jax.Array
    last_tokens_BZ: jax.Array
    tokens_TBZ: jax.Array
    log_probs_BZ: jax.Array
    lengths_BZ: jax.Array  #: 0 until the hypothesis ends
    state: State


def rollout(
    step: Step,
    choose: Choose,
    state: State,
    max_lengths_B: jax.Array,
    *,
    max_length: int,
    num_hypotheses: int,
    penalties: np.ndarray,
) -> Hypotheses:
    """Extends each of the [B, num_hypotheses] hypotheses by `choose` until EOS.

    At a sentence's limit (`max_lengths_B`, EOS included) the token is EOS, whatever
    `choose` returns. Log-probabilities are the model's own, over the whole vocabulary.
    The hypotheses are not sorted. `penalties` are those of the method, and the other arguments
    those of `Method.search`.
    """
    shape_BZ = (max_lengths_B.shape[0], num_hypotheses)
    max_lengths_B1 = jnp.minimum(max_lengths_B, max_length)[:, None]
    is_padding_B1 = max_lengths_B1 <= 0

    def growing(search: _Rollout) -> jax.Array:
        return (search.lengths_BZ == 0) & ~is_padding_B1

    def body(search: _Rollout) -> _Rollout:
        position = search.position
        logits_BZV, state = step(search.last_tokens_BZ, position, search.state)
        logits_BZV = logits_BZV.astype(jnp.float32)
        ids_V = jnp.arange(logits_BZV.shape[-1])
        allowed_V = (ids_V != PAD_ID) & (ids_V != BOS_ID)
        tokens_BZ = choose(jnp.where(allowed_V, logits_BZV, -jnp.inf), position)
        tokens_BZ = jnp.where(position + 1 >= max_lengths_B1, EOS_ID, tokens_BZ)

        growing_BZ = growing(search)
        logit_BZ = jnp.take_along_axis(logits_BZV, tokens_BZ[:, :, None], axis=2)[:, :, 0]
        added_BZ = jnp.minimum(logit_BZ - jax.nn.logsumexp(logits_BZV, axis=-1), 0.0)
        ends_BZ = growing_BZ & (tokens_BZ == EOS_ID)
        tokens_BZ = jnp.where(growing_BZ, tokens_BZ, PAD_ID)
        return _Rollout(
            position=position + 1,
            last_tokens_BZ=tokens_BZ,
            tokens_TBZ=lax.dynamic_update_index_in_dim(search.tokens_TBZ, tokens_BZ, position, 0),
            log_probs_BZ=search.log_probs_BZ + jnp.where(growing_BZ, added_BZ, 0.0),
            lengths_BZ=jnp.where(ends_BZ, position + 1, search.lengths_BZ),
            state=state,
        )

    search = lax.while_loop(
        lambda search: (search.position < max_length) & jnp.any(growing(search)),
        body,
        _Rollout(
            position=jnp.zeros((), jnp.int32),
            last_tokens_BZ=jnp.full(shape_BZ, BOS_ID, jnp.int32),
            tokens_TBZ=jnp.full((max_length, *shape_BZ), PAD_ID, jnp.int32),
            log_probs_BZ=jnp.zeros(shape_BZ, jnp.float32),
            lengths_BZ=jnp.zeros(shape_BZ, jnp.int32),
            state=state,
        ),
    )
    log_probs_BZ = jnp.where(is_padding_B1, -jnp.inf, search.log_probs_BZ)
    return Hypotheses(
        tokens=jnp.moveaxis(search.tokens_TBZ, 0, 2),
        lengths=search.lengths_BZ,
        scores=log_probs_BZ / jnp.asarray(penalties)[search.lengths_BZ],
        log_probs=log_probs_BZ,
    )


def most_probable(logits_BZV: jax.Array, position: jax.Array) -> jax.Array:
    """The `choose` of greedy decoding."""
    return first_argmax(logits_BZV)


def first_argmax(values: jax.Array) -> jax.Array:
    """`jnp.argmax(values, axis=-1)` (the first of equal ones), int32.

    XLA's argmax reduces value-index pairs, which it does not vectorise on CPUs: over
    [160, 8000] it takes about 50 ms there, and these two plain reductions about 2 ms.
    """
    size = values.shape[-1]
    is_largest = values == jnp.max(values, axis=-1, keepdims=True)
    return jnp.min(jnp.where(is_largest, jnp.arange(size, dtype=jnp.int32), size - 1), axis=-1)
