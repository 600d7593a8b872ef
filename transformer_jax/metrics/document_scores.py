"""Scores of translated documents: whole ones, and sentences by place and by length of document."""

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any

from transformer_jax.metrics.base import Lines
from transformer_jax.metrics.scores import Score, corpus_scores


@dataclass(frozen=True)
class Part:
    """The sentences of documents whose place, or whose document's length, is in a range."""

    first: int  #: of the range, in sentences, from 1
    last: int
    sentences: int
    bleu: float


@dataclass(frozen=True)
class DocumentScores:
    """What the scores of single sentences don't tell.

    Attributes:
        documents: their number.
        scores: by metric, each document one segment (d-BLEU, Liu et al. 2020, arXiv:2001.08210,
            and the same with the other metrics), sentences joined by a space.
        by_place: BLEU of the sentences by their place in the document.
        by_length: BLEU of the sentences by the length of their document.
        blocks: how many blocks were formed.
        divided: of these, how many were translated again in parts.
    """

    documents: int
    scores: dict[str, Score]
    by_place: list[Part]
    by_length: list[Part]
    blocks: int = 0
    divided: int = 0

    def __str__(self) -> str:
        lines = [f"{self.documents} documents, each one segment:"]
        lines += [f"d-{s.name:<8}{s.score:6.2f}  {s.signature}" for s in self.scores.values()]
        for name, parts in (("place", self.by_place), ("length", self.by_length)):
            listed = ", ".join(
                f"{part.first}{f'-{part.last}' if part.last > part.first else ''}: {part.bleu:.2f}"
                for part in parts
            )
            lines.append(f"BLEU by {name} in sentences: {listed}")
        if self.blocks:
            lines.append(
                f"{self.divided} of {self.blocks} blocks ({self.divided / self.blocks:.1%}) were "
                "translated again in parts"
            )
        return "\n".join(lines)


def document_scores(
    hypotheses: Lines,
    references: Lines,
    lengths: Sequence[int],
    *,
    target_language: str = "",
    also: Collection[str] = (),
) -> DocumentScores:
    """Scores of documents against one reference each.

    Args:
        hypotheses: the sentences of all documents.
        references: their references.
        lengths: sentences of each document.
        target_language: see `make_metrics`.
        also: see `make_metrics`.

    Raises:
        ValueError: the lengths do not add up to the number of sentences.
        UserError: as `corpus_scores`.
    """
    if sum(lengths) != len(hypotheses):
        raise ValueError(f"documents of {sum(lengths)} sentences, but {len(hypotheses)} are given")
    options: Any = {"target_language": target_language}
    texts = [[" ".join(each) for each in cut(side, lengths)] for side in (hypotheses, references)]
    places = [place for length in lengths for place in range(1, length + 1)]
    sizes = [length for length in lengths for _ in range(length)]

    def parts(numbers: Sequence[int]) -> list[Part]:
        found = []
        for power in range(max(numbers, default=0).bit_length()):
            first, last = 1 << power, (2 << power) - 1
            if chosen := [i for i, number in enumerate(numbers) if first <= number <= last]:
                sides = ([side[i] for i in chosen] for side in (hypotheses, references))
                bleu = corpus_scores(*sides, **options)["bleu"].score
                found.append(Part(first, last, len(chosen), bleu))
        return found

    return DocumentScores(
        len(lengths), corpus_scores(*texts, **options, also=also), parts(places), parts(sizes)
    )


def cut(rows: Iterable[str], lengths: Sequence[int]) -> list[list[str]]:
    """The rows, so many in each list."""
    rest = iter(rows)
    return [list(islice(rest, length)) for length in lengths]
