"""Which translations of the teacher the student is trained on."""

import json
import statistics
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import NamedTuple

from transformer_jax.data.sources.base import Pair
from transformer_jax.translation.translator import Translation


class Candidate(NamedTuple):
    """A translation of the teacher."""

    score: float  #: its log-probability divided by its number of pieces, EOS included, in nats
    text: str


def to_line(translations: Iterable[Translation]) -> str:
    """The candidates of one source, best first, as a line of JSON; none if it has no words."""
    found = [(each.log_prob / len(each.tokens), each.text) for each in translations if each.tokens]
    return json.dumps(found, ensure_ascii=False)


def from_line(line: str) -> list[Candidate]:
    """What `to_line` wrote."""
    return [Candidate(*each) for each in json.loads(line)]


@dataclass
class Tally:
    """What became of the sources."""

    chosen: int = 0
    without: int = 0  #: that have no translation: they are empty or too long
    improbable: int = 0  #: whose translation's score is too low
    scores: list[float] = field(default_factory=list)  #: of all translations

    def __str__(self) -> str:
        lines = self.chosen + self.without + self.improbable
        text = (
            f"{self.chosen:,} of {lines:,} sources chosen; {self.improbable:,} improbable, "
            f"{self.without:,} empty or longer than the teacher reads"
        )
        if len(self.scores) > 1:
            cuts = statistics.quantiles(self.scores, n=20, method="inclusive")
            text += f"; log-probability per piece: median {cuts[9]:.3f}, 5 % below {cuts[0]:.3f}"
        return text


def choose(
    rows: Iterable[tuple[str, str | None, list[Candidate]]], least: float | None, tally: Tally
) -> Iterator[Pair]:
    """Yields the sources with a translation each.

    Of several candidates it is the one that is nearest to the reference by chrF, as the sequence
    interpolation of Kim and Rush 2016 (arXiv:1606.07947, section 3.3) does by BLEU; without a
    reference the first.

    Args:
        rows: source, reference or None, candidates.
        least: the lowest score of a translation to train on; None: any.
        tally: gets the counts.
    """
    from sacrebleu import sentence_chrf

    for source, reference, candidates in rows:
        best = next(iter(candidates), None)
        if len(candidates) > 1 and reference is not None:
            best = max(candidates, key=lambda each: sentence_chrf(each.text, [reference]).score)
        if best is not None:
            tally.scores.append(best.score)
        if best is None or not best.text.strip():
            tally.without += 1
        elif least is not None and best.score < least:
            tally.improbable += 1
        else:
            tally.chosen += 1
            yield source, best.text
