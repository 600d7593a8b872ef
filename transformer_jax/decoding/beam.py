"""Beam search with a length penalty, and a stop that cannot lose a better translation.

    score(y) = log p(y | x) / lp(|y|)           (|y| counts EOS)
    lp(n) = ((5 + n) / 6) ** alpha, or n ** alpha

Wu et al. 2016, arXiv:1609.08144, section 7; see `Method.penalties`. Each step
extends the Z live hypotheses and keeps the best 2Z extensions. Each live hypothesis has one EOS
extension, so at least Z of the 2Z are not EOS and stay live. Those that are EOS compete for Z
places of their own, so a finished hypothesis never takes a live one's place.

* Stop. A live hypothesis of log-probability l <= 0 can only lose probability, and can
  end at any length n from the next one to its sentence's limit, so no score it will ever
  reach exceeds max over n of l / lp(n). lp is monotone in n (rising for alpha > 0, falling
  for alpha < 0), so the maximum lies at one of the two ends. A sentence is done when this
  bound, for its best live hypothesis, is not above the score of its n-th finished one, where n
  hypotheses are asked for. Further steps, taken because its batch-mates are not done, then change
  none of these n.
* Patience. With `patience` p, a sentence is also done when p * Z hypotheses have ended. An EOS then
  counts only among the best Z extensions of its step, and what ends after a sentence is done is
  left out. Most other libraries stop like this, with p = 1 (Kasai et al. 2022, arXiv:2204.05424).
  It is faster, and can miss a better translation. p is at least 1, so that Z hypotheses are found.
* Limit. The last position that a sentence's limit allows takes only EOS, at the model's
  log-probability there, so a hypothesis that was cut is comparable with the others.
* PAD and BOS are never generated. The normaliser is the whole vocabulary's, so a
  log-probability here equals the one that scoring the translation gives.

A step costs, beside the model's own time, one top-2Z over the Z * V extensions of each sentence,
and the selection of `state` by parents. Caches of keys and values are not moved for that
(`ops.key_value_cache`). Token histories are not either: each step writes its tokens and parents,
and the finished hypotheses are traced back at the end.
"""

from dataclasses import dataclass, replace
from typing import Annotated, NamedTuple, Self

import jax
import jax.numpy as jnp
from annotated_types import Ge
from jax import Array, lax
from pydantic import PositiveInt

from transformer_jax.decoding.base import (
    Hypotheses,
    LengthPenaltyForm,
    Limits,
    Method,
    State,
    Step,
    best_first,
    select_hypotheses,
    selectable,
)
from transformer_jax.decoding.rollout import rollout
from transformer_jax.decoding.search_loop import Search, search_loop
from transformer_jax.ops.sums import logsumexp
from transformer_jax.ops.top_k import first_argmax, top_k_of_rows
from transformer_jax.vocabulary import BOS_ID, EOS_ID, PAD_ID


class _Finished(NamedTuple):
    """The Z best finished hypotheses of each sentence, best first; all leaves [B, Z]."""

    scores: Array
    log_probs: Array
    lengths: Array
    beams: Array  #: which live hypothesis the EOS was added to


class _Rows(NamedTuple):
    last_tokens_BZ: Array
    live_log_probs_BZ: Array  #: falling; -inf where there is no hypothesis
    finished: _Finished
    num_ended_B: Array  #: hypotheses that ended so far
    done_B: Array


@dataclass(frozen=True)
class Beam(Method):
    """The `beam_size` best hypotheses that beam search finds for each sentence.

    `beam_size` 1 is greedy decoding: its one hypothesis ends where EOS is the best extension.
    """

    beam_size: PositiveInt = 4  #: hypotheses kept for each sentence (Z)
    length_penalty: float = Method.length_penalty
    #: alpha; larger favours longer translations
    length_penalty_form: LengthPenaltyForm = "gnmt"
    #: of length n: gnmt ((5 + n) / 6)^alpha, power n^alpha as Hugging Face has it
    patience: Annotated[float, Ge(1)] | None = None
    #: stop when patience * beam_size hypotheses have ended, as most libraries do with 1; none =
    #: stop when no better one can come

    @property
    def num_hypotheses(self) -> int:
        return self.beam_size

    def with_hypotheses(self, n: int) -> Self:
        return replace(self, beam_size=max(n, self.beam_size))

    def search(self, step: Step, state: State, limits: Limits) -> Hypotheses:
        if self.beam_size == 1:
            return rollout(self, step, lambda logits, *_: first_argmax(logits), state, limits)
        shape_BZ = (limits.max_lengths_B.shape[0], self.beam_size)
        penalties_N = jnp.asarray(self.penalties(limits.max_length))
        max_lengths_B = jnp.minimum(limits.max_lengths_B, limits.max_length)
        asked_B = limits.num_best_B
        if asked_B is None:
            asked_B = jnp.full_like(max_lengths_B, self.beam_size)

        nothing_BZ = jnp.full(shape_BZ, -jnp.inf, jnp.float32)
        zeros_BZ = jnp.zeros(shape_BZ, jnp.int32)
        unwritten = jnp.zeros((limits.max_length, *shape_BZ), jnp.int32)
        starts_BZ = (max_lengths_B[:, None] > 0) & (jnp.arange(self.beam_size) == 0)
        search = search_loop(
            lambda search: self._extend(step, search, penalties_N, limits),
            lambda search: ~search.rows.done_B,
            Search(
                position=jnp.zeros((), jnp.int32),
                given=(max_lengths_B, asked_B),
                rows=_Rows(
                    last_tokens_BZ=jnp.full(shape_BZ, BOS_ID, jnp.int32),
                    # All beams start alike, so only the first one counts.
                    live_log_probs_BZ=jnp.where(starts_BZ, 0.0, nothing_BZ),
                    finished=_Finished(nothing_BZ, nothing_BZ, zeros_BZ, zeros_BZ),
                    num_ended_B=jnp.zeros_like(max_lengths_B),
                    done_B=max_lengths_B <= 0,
                ),
                history=(unwritten, unwritten),  # tokens and parents
                state=selectable(state, *shape_BZ),
            ),
        )
        finished, (tokens_TBZ, parents_TBZ) = search.rows.finished, search.history
        tokens = _trace_back(tokens_TBZ, parents_TBZ, finished)
        found = Hypotheses(tokens, finished.lengths, finished.scores, finished.log_probs)
        return best_first(found, limits.num_best_B)

    def _extend(
        self, step: Step, search: Search, penalties_N: Array, limits: Limits
    ) -> tuple[_Rows, tuple[Array, Array], State]:
        """One step: every live hypothesis grows by a token or ends."""
        position, (max_lengths_B, asked_B), rows = search.position, search.given, search.rows
        logits_BZV, state = step(rows.last_tokens_BZ, position, search.state)
        at_limit_B = position + 1 >= max_lengths_B
        log_probs_BC, parents_BC, tokens_BC = _candidates(
            logits_BZV.astype(jnp.float32), rows.live_log_probs_BZ, at_limit_B, limits
        )
        ends_BC = tokens_BC == EOS_ID
        counts_BC = ends_BC & ~jnp.isneginf(log_probs_BC)
        if self.patience is not None:
            is_best_C = jnp.arange(ends_BC.shape[1]) < self.beam_size
            counts_BC &= is_best_C & ~rows.done_B[:, None]
        num_ended_B = rows.num_ended_B + counts_BC.sum(axis=1)

        ended_BC = jnp.where(counts_BC, log_probs_BC, -jnp.inf)
        ended = _Finished(
            scores=ended_BC / penalties_N[position + 1],
            log_probs=ended_BC,
            lengths=jnp.where(jnp.isneginf(ended_BC), 0, position + 1),
            beams=parents_BC,
        )
        finished = _keep_best(rows.finished, ended)
        live_log_probs_BZ, chosen_BZ = top_k_of_rows(
            jnp.where(ends_BC, -jnp.inf, log_probs_BC), self.beam_size
        )
        parents_BZ = jnp.take_along_axis(parents_BC, chosen_BZ, axis=1)
        tokens_BZ = jnp.take_along_axis(tokens_BC, chosen_BZ, axis=1)

        next_penalty = penalties_N[jnp.minimum(position + 2, len(penalties_N) - 1)]
        longest_penalty_B = penalties_N[max_lengths_B]
        enough = jnp.inf if self.patience is None else self.patience * self.beam_size
        to_beat_B = jnp.take_along_axis(finished.scores, asked_B[:, None] - 1, axis=1)[:, 0]
        done_B = (num_ended_B >= enough) | _is_done(
            live_log_probs_BZ[:, 0], to_beat_B, next_penalty, longest_penalty_B
        )
        rows = _Rows(tokens_BZ, live_log_probs_BZ, finished, num_ended_B, done_B)
        return rows, (tokens_BZ, parents_BZ), select_hypotheses(state, parents_BZ)


def _is_done(
    best_live_B: Array, to_beat_B: Array, next_penalty: Array, longest_penalty_B: Array
) -> Array:
    """Whether no live hypothesis can still reach a score above `to_beat_B`; see the proof above."""
    bound_B = jnp.maximum(best_live_B / next_penalty, best_live_B / longest_penalty_B)
    return ~(bound_B > to_beat_B)


def _candidates(
    logits_BZV: Array, live_log_probs_BZ: Array, at_limit_B: Array, limits: Limits
) -> tuple[Array, Array, Array]:
    """The C = 2Z best extensions: (log-probability, parent, token), each [B, C]."""
    num_beams, vocab_size = logits_BZV.shape[1:]
    ids_V = jnp.arange(vocab_size)
    is_possible_B1V = jnp.where(
        at_limit_B[:, None, None], ids_V == EOS_ID, limits.allowed(vocab_size)
    )
    normaliser_BZ1 = logsumexp(logits_BZV)
    # Rounding can lift a log-probability above 0, which the stop relies on never to happen.
    log_probs_BZV = jnp.minimum(logits_BZV - normaliser_BZ1, 0.0)
    totals_BZV = jnp.where(is_possible_B1V, live_log_probs_BZ[:, :, None] + log_probs_BZV, -jnp.inf)
    log_probs_BC, places_BC = top_k_of_rows(totals_BZV, 2 * num_beams, axes=2)
    return log_probs_BC, places_BC // vocab_size, places_BC % vocab_size


def _keep_best(finished: _Finished, ended: _Finished) -> _Finished:
    """The best Z of the finished hypotheses and the new ones; the earlier one wins a tie."""
    both = jax.tree.map(lambda *leaves: jnp.concatenate(leaves, axis=1), finished, ended)
    _, kept_BZ = top_k_of_rows(both.scores, finished.scores.shape[1])
    return jax.tree.map(lambda leaf: jnp.take_along_axis(leaf, kept_BZ, axis=1), both)


def _trace_back(tokens_TBZ: Array, parents_TBZ: Array, finished: _Finished) -> Array:
    """Tokens [B, Z, T] of the finished hypotheses, from their last token back to the first."""

    def back(beams_BZ: Array, at_position: tuple[Array, Array, Array]) -> tuple[Array, Array]:
        position, tokens_BZ, parents_BZ = at_position
        end_BZ = finished.lengths - 1
        before_end_BZ = position < end_BZ
        tokens_BZ = jnp.take_along_axis(tokens_BZ, beams_BZ, axis=1)
        tokens_BZ = jnp.where(before_end_BZ, tokens_BZ, PAD_ID)
        tokens_BZ = jnp.where(position == end_BZ, EOS_ID, tokens_BZ)
        parents_BZ = jnp.take_along_axis(parents_BZ, beams_BZ, axis=1)
        return jnp.where(before_end_BZ, parents_BZ, beams_BZ), tokens_BZ

    steps = jnp.arange(len(tokens_TBZ)), tokens_TBZ, parents_TBZ
    _, traced_TBZ = lax.scan(back, finished.beams, steps, reverse=True)
    return jnp.moveaxis(traced_TBZ, 0, 2)
