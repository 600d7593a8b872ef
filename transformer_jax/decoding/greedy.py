"""Greedy decoding: the most probable token at each step, until that is EOS."""

from dataclasses import dataclass
from typing import Self

import jax
from pydantic import FiniteFloat

from transformer_jax.decoding.base import Hypotheses, Method, State, Step, first
from transformer_jax.decoding.rollout import most_probable, rollout
from transformer_jax.errors import UserError


@dataclass(frozen=True)
class Greedy(Method):
    """One hypothesis a sentence; the fastest method."""

    length_penalty: FiniteFloat = 0.6  #: changes the reported score only

    @property
    def num_hypotheses(self) -> int:
        return 1

    def with_hypotheses(self, n: int) -> Self:
        if n > 1:
            raise UserError(
                f"greedy decoding finds one translation, not {n}: use method=beam or method=sample"
            )
        return self

    def search(
        self,
        step: Step,
        state: State,
        max_lengths_B: jax.Array,
        sentence_ids_B: jax.Array,
        key: jax.Array,
        *,
        max_length: int,
        num_best_B: jax.Array | None = None,
    ) -> Hypotheses:
        found = rollout(
            step,
            most_probable,
            state,
            max_lengths_B,
            max_length=max_length,
            num_hypotheses=1,
            penalties=self.penalties(max_length),
        )
        return first(found, num_best_B)
