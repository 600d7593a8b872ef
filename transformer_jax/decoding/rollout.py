"""Left-to-right generation without backtracking, which greedy decoding and sampling share."""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax.numpy as jnp
from jax import Array

from transformer_jax.decoding.base import Hypotheses, Limits, Method, State, Step, best_first
from transformer_jax.decoding.search_loop import Search, search_loop
from transformer_jax.ops.sums import logsumexp
from transformer_jax.vocabulary import BOS_ID, EOS_ID, PAD_ID

#: `choose(logits_BZV, position, keys_BZ) -> tokens_BZ`; in the logits `Limits.never` are -inf.
Choose = Callable[[Array, Array, Any], Array]


class _Rows(NamedTuple):
    last_tokens_BZ: Array
    log_probs_BZ: Array
    lengths_BZ: Array  #: 0 until the hypothesis ends


def rollout(
    method: Method,
    step: Step,
    choose: Choose,
    state: State,
    limits: Limits,
    keys_BZ: Array | None = None,
) -> Hypotheses:
    """Extends each hypothesis of the method by `choose` until EOS, and returns the best first.

    At a sentence's limit (`limits.max_lengths_B`) the token is EOS, whatever `choose` returns.
    Log-probabilities are the model's own, over the whole vocabulary.
    `keys_BZ` are handed to `choose`; `step`, `state` and `limits` are those of `Method.search`.
    """
    shape_BZ = (limits.max_lengths_B.shape[0], method.num_hypotheses)
    max_lengths_B1 = jnp.minimum(limits.max_lengths_B, limits.max_length)[:, None]

    def growing(search: Search) -> Array:
        max_lengths_B1, _ = search.given
        return (search.rows.lengths_BZ == 0) & (max_lengths_B1 > 0)

    def body(search: Search) -> tuple[_Rows, Array, State]:
        position, (max_lengths_B1, keys_BZ), rows = search.position, search.given, search.rows
        logits_BZV, state = step(rows.last_tokens_BZ, position, search.state)
        logits_BZV = logits_BZV.astype(jnp.float32)
        allowed_V = limits.allowed(logits_BZV.shape[-1])
        tokens_BZ = choose(jnp.where(allowed_V, logits_BZV, -jnp.inf), position, keys_BZ)
        tokens_BZ = jnp.where(position + 1 >= max_lengths_B1, EOS_ID, tokens_BZ)

        growing_BZ = growing(search)
        logit_BZ = jnp.take_along_axis(logits_BZV, tokens_BZ[:, :, None], axis=2)[:, :, 0]
        added_BZ = jnp.minimum(logit_BZ - logsumexp(logits_BZV)[..., 0], 0.0)
        ends_BZ = growing_BZ & (tokens_BZ == EOS_ID)
        tokens_BZ = jnp.where(growing_BZ, tokens_BZ, PAD_ID)
        rows = _Rows(
            last_tokens_BZ=tokens_BZ,
            log_probs_BZ=rows.log_probs_BZ + jnp.where(growing_BZ, added_BZ, 0.0),
            lengths_BZ=jnp.where(ends_BZ, position + 1, rows.lengths_BZ),
        )
        return rows, tokens_BZ, state

    search = search_loop(
        body,
        lambda search: jnp.any(growing(search), axis=1),
        Search(
            position=jnp.zeros((), jnp.int32),
            given=(max_lengths_B1, keys_BZ),
            rows=_Rows(
                last_tokens_BZ=jnp.full(shape_BZ, BOS_ID, jnp.int32),
                log_probs_BZ=jnp.zeros(shape_BZ, jnp.float32),
                lengths_BZ=jnp.zeros(shape_BZ, jnp.int32),
            ),
            history=jnp.full((limits.max_length, *shape_BZ), PAD_ID, jnp.int32),
            state=state,
        ),
    )
    lengths_BZ = search.rows.lengths_BZ
    log_probs_BZ = jnp.where(max_lengths_B1 <= 0, -jnp.inf, search.rows.log_probs_BZ)
    found = Hypotheses(
        tokens=jnp.moveaxis(search.history, 0, 2),
        lengths=lengths_BZ,
        scores=log_probs_BZ / jnp.asarray(method.penalties(limits.max_length))[lengths_BZ],
        log_probs=log_probs_BZ,
    )
    return best_first(found, limits.num_best_B)
