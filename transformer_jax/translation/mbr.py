"""Minimum Bayes risk: the translation that agrees most with all the others.

    score(y) = mean over hypotheses z of chrF(y, z)           (Eikema & Aziz 2020, arXiv:2005.10283)

With samples as hypotheses this estimates the expected chrF of y. chrF is sacrebleu's of two
sentences, out of 100 (Popović 2015), computed by fastchrf in one of two ways:

* `pairwise`: exactly this, N^2 comparisons for N hypotheses;
* `aggregate`: against the mean of the hypotheses' n-gram counts, N comparisons (Vamvas & Sennrich
  2024, arXiv:2402.04251).
"""

from collections.abc import Sequence

from transformer_jax.errors import UserError


def mbr_scores(texts: Sequence[Sequence[str]], kind: str) -> list[list[float]]:
    """The score of each hypothesis of each sentence.

    Args:
      texts: the hypotheses of each sentence; as often as they were drawn.
      kind: `pairwise` or `aggregate`.

    Raises:
      UserError: fastchrf is not installed.
    """
    try:
        import fastchrf
    except ImportError as error:
        raise UserError("decode.mbr needs fastchrf: pip install 'transformer-jax[mbr]'") from error
    lists = [list(each) for each in texts]
    if not lists:
        return []
    if kind == "aggregate":
        return list(fastchrf.aggregate_chrf(lists, lists))
    matrices = fastchrf.pairwise_chrf(lists, lists)
    return [[sum(row) / len(row) for row in matrix] for matrix in matrices]
