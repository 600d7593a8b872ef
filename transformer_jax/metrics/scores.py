"""BLEU, chrF++ and TER by sacrebleu (Post 2018, arXiv:1804.08771), with their signatures."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from typing import Any

from transformer_jax.errors import UserError, as_user_error
from transformer_jax.metrics.base import Lines
from transformer_jax.settings.languages import base_language


@dataclass(frozen=True)
class Score:
    """A corpus score; BLEU, chrF++ and TER are all out of 100, and a low TER is a good one."""

    name: str  #: sacrebleu's, such as "chrF2++", or "BLEU-lc"
    score: float
    signature: str  #: says how the score was computed; report it with the score


@dataclass(frozen=True)
class Comparison:
    """A system against a baseline by paired bootstrap resampling (Koehn 2004)."""

    name: str
    score: float
    baseline_score: float
    p_value: float  #: of the two being equally good
    mean: float  #: of the system's score over the resamples
    confidence: float  #: half the width of its 95 % interval
    baseline_mean: float
    baseline_confidence: float
    signature: str


#: sacreBLEU's names for the languages that it does not cut at spaces and punctuation.
_OWN_TOKENIZER = ("zh", "ja", "ko")


#: The names of metrics that sacrebleu gives another one's name.
_NAMES = {"bleu_lc": "BLEU-lc"}


def make_metrics(*, target_language: str = "", also: Collection[str] = ()) -> dict[str, Any]:
    """Sacrebleu's metrics by key: bleu, chrf (chrF++, that is word order 2) and those of `also`.

    These can be ter, and bleu_lc: BLEU of both sides in lower case.

    BLEU is cased and on detokenised text, tokenised as sacrebleu does by default for the
    target language ("13a", but by characters in Chinese, by MeCab in Japanese and Korean). What
    follows the language in its code (zh_CN, zh-TW) does not matter, nor whether two letters
    stand for it or three.

    Raises:
      UserError: there is no such metric, or the language's tokenizer is not installed.
    """
    from sacrebleu.metrics import BLEU, CHRF, TER

    if unknown := set(also) - {"ter", "bleu_lc"}:
        raise UserError(f"metrics={','.join(sorted(unknown))}: use some of ter, bleu_lc")
    language = base_language(target_language)
    language = language if language in _OWN_TOKENIZER else ""
    what = f"BLEU for target language {target_language} needs its tokenizer"
    advice = f": ./run setup {language}, or pip install 'sacrebleu[{language}]'"
    with as_user_error(what, ImportError, RuntimeError, then=advice):
        metrics = {"bleu": BLEU(trg_lang=language)}
        if "bleu_lc" in also:
            metrics["bleu_lc"] = BLEU(trg_lang=language, lowercase=True)
    metrics["chrf"] = CHRF(word_order=2)
    if "ter" in also:
        metrics["ter"] = TER()
    return metrics


def corpus_scores(
    hypotheses: Lines, references: Lines, *, target_language: str = "", also: Collection[str] = ()
) -> dict[str, Score]:
    """Scores of translations against one reference each, by key (see `make_metrics`).

    Raises:
      UserError: no sentences, or not as many references as translations.
    """
    _check_lengths(hypotheses, references, "translations")
    scores = {}
    for key, metric in make_metrics(target_language=target_language, also=also).items():
        result = metric.corpus_score(list(hypotheses), [list(references)])
        name = _NAMES.get(key, result.name)
        scores[key] = Score(name, result.score, str(metric.get_signature()))
    return scores


def compare(
    hypotheses: Lines,
    baseline: Lines,
    references: Lines,
    *,
    target_language: str = "",
    also: Collection[str] = (),
    num_samples: int = 1000,
) -> dict[str, Comparison]:
    """Paired bootstrap of the translations against a baseline's, by sacrebleu's own code.

    Raises:
      UserError: no sentences, or the three texts are of unequal length.
    """
    from sacrebleu.significance import PairedTest

    _check_lengths(hypotheses, references, "translations")
    _check_lengths(baseline, references, "baseline translations")
    comparisons = {}
    # One by one: sacrebleu keys its results by the metrics' own names, and two are called BLEU.
    for key, metric in make_metrics(target_language=target_language, also=also).items():
        signatures, results = PairedTest(
            [("baseline", list(baseline)), ("system", list(hypotheses))],
            {key: metric},
            references=[list(references)],
            test_type="bs",
            n_samples=num_samples,
        )()
        ((name, signature),) = signatures.items()
        before, result = results[name]
        # sacrebleu counts the samples with a larger difference than that of the texts, which are
        # none where every sample has the same scores on both sides.
        is_same = (result.score, result.mean, result.ci) == (before.score, before.mean, before.ci)
        comparisons[key] = Comparison(
            name=_NAMES.get(key, name),
            score=float(result.score),
            baseline_score=float(before.score),
            p_value=1.0 if is_same else float(result.p_value),
            mean=float(result.mean),
            confidence=float(result.ci),
            baseline_mean=float(before.mean),
            baseline_confidence=float(before.ci),
            signature=str(signature),
        )
    return comparisons


def _check_lengths(hypotheses: Lines, references: Lines, what: str) -> None:
    if len(hypotheses) != len(references):
        raise UserError(
            f"{len(hypotheses)} {what} and {len(references)} references; expected as many"
        )
    if not references:
        raise UserError("nothing to score: there are no sentences")
