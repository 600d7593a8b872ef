"""Minimum Bayes risk: the translation that agrees most with all the others.

    score(y) = mean over hypotheses z of utility(x, y, z)     (Eikema & Aziz 2020, arXiv:2005.10283)

With samples as hypotheses this estimates the expected utility of y. The utility is a variant:

* `pairwise`: chrF of y against z, sacrebleu's of two sentences, out of 100 (Popović 2015), computed
  by fastchrf in N^2 comparisons for N hypotheses;
* `aggregate`: chrF against the mean of the hypotheses' n-gram counts, N comparisons (Vamvas &
  Sennrich 2024, arXiv:2402.04251);
* a learned metric: how far its score of y, for the source x with z as the reference, is from the
  worst; N^2 passes of its model, or N if it needs no reference.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from transformer_jax.errors import optional
from transformer_jax.metrics.base import Lines, Metric, opened
from transformer_jax.metrics.registry import METRICS


@dataclass(frozen=True)
class Pairwise:
    """The mean chrF against each of the translations."""


@dataclass(frozen=True)
class Aggregate:
    """The chrF against the mean of the translations' n-gram counts."""


Utility = Pairwise | Aggregate | Metric

UTILITIES: dict[str, type] = {"pairwise": Pairwise, "aggregate": Aggregate, **METRICS}


def mbr_scores(sources: Lines, texts: Sequence[Lines], utility: Utility) -> list[list[float]]:
    """The score of each hypothesis of each sentence; a higher one is better.

    Args:
      sources: the sentences that were translated; only metrics read them.
      texts: the hypotheses of each sentence; as often as they were drawn.
      utility: compares two of them.

    Raises:
      UserError: fastchrf is not installed, or there is no model in the metric's folder.
    """
    lists = [list(each) for each in texts]
    if isinstance(utility, Metric):
        return _by_metric(sources, lists, utility)
    fastchrf = optional("fastchrf", "decode.mbr", "mbr")
    if not lists:
        return []
    if isinstance(utility, Aggregate):
        return list(fastchrf.aggregate_chrf(lists, lists))
    matrices = fastchrf.pairwise_chrf(lists, lists)
    return [[sum(row) / len(row) for row in matrix] for matrix in matrices]


def _by_metric(sources: Lines, texts: Sequence[Lines], metric: Metric) -> list[list[float]]:
    judge, found = opened(metric), []
    for source, hypotheses in zip(sources, texts, strict=True):
        count = len(hypotheses)
        references = hypotheses if metric.needs_reference else [""]
        pairs = [(one, other) for one in hypotheses for other in references]
        scores = judge([source] * len(pairs), *map(list, zip(*pairs, strict=True)))
        means = scores.reshape(count, -1).mean(axis=1).tolist()
        found.append([metric.goodness(mean) for mean in means])
    return found
