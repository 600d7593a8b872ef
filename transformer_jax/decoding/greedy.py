"""Greedy decoding: the most probable token at each step, until that is EOS. A beam of one."""

from dataclasses import dataclass
from typing import Self

from transformer_jax.decoding.base import Hypotheses, Limits, Method, State, Step
from transformer_jax.decoding.beam import Beam
from transformer_jax.errors import UserError


@dataclass(frozen=True)
class Greedy(Method):
    """One hypothesis a sentence; the fastest method."""

    length_penalty: float = Method.length_penalty  #: changes the reported score only

    num_hypotheses = 1

    def with_hypotheses(self, n: int) -> Self:
        if n > 1:
            raise UserError(
                f"greedy decoding finds one translation, not {n}: use method=beam or method=sample"
            )
        return self

    def search(self, step: Step, state: State, limits: Limits) -> Hypotheses:
        of_one = Beam(beam_size=1, length_penalty=self.length_penalty)
        return of_one.search(step, state, limits)
