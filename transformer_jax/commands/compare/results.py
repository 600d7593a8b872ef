"""Trains and scores the rows of a comparison, and sums the results up."""

import dataclasses
import json
import math
import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from etils import epath

from transformer_jax.commands.compare.rows import Row
from transformer_jax.config import to_dict
from transformer_jax.errors import UserError
from transformer_jax.paths import write_whole
from transformer_jax.runs.evaluation import evaluate
from transformer_jax.training.train import train

_FILE = "comparison.json"


@dataclass(frozen=True)
class Result:
    """One trained and scored model."""

    seed: int
    scores: dict[str, float]  #: metric -> score, such as `bleu`
    signature: str  #: of BLEU
    steps: int  #: that were trained; fewer than the recipe's if it stopped early
    steps_per_second: float  #: the median over the training
    sentences_per_second: float | None  #: of the search for the score, without compilation


class Summary:
    """What is known of a row: its results, in the order of their seeds."""

    def __init__(self, row: Row, results: Sequence[Result]) -> None:
        self.row, self.results = row, results

    def scores(self, metric: str) -> list[float]:
        """One score for each seed."""
        return [result.scores[metric] for result in self.results]

    @property
    def steps_per_second(self) -> float:
        """The median of the seeds' medians."""
        return statistics.median(result.steps_per_second for result in self.results)

    def difference(self, first: "Summary", metric: str) -> list[float]:
        """Scores minus those of another row with the same seeds, of the seeds that both have."""
        by_seed = {result.seed: result.scores[metric] for result in first.results}
        return [
            result.scores[metric] - by_seed[result.seed]
            for result in self.results
            if result.seed in by_seed
        ]


def run_row(
    row: Row, seed: int, folder: epath.Path, *, should_stop: Callable[[], bool], progress: bool
) -> Result | None:
    """Trains and scores a row with one seed, or reads the result if that was done before.

    Args:
        folder: of this row and seed; a training that was stopped continues there.
        should_stop: as for `train`.

    Returns:
        The result; None if the training was stopped.

    Raises:
        UserError: the folder is of another recipe; or as `train` and `evaluate`.
    """
    config = dataclasses.replace(row.config, train=dataclasses.replace(row.config.train, seed=seed))
    path = folder / _FILE
    wanted = json.loads(json.dumps(to_dict(config)))
    if path.exists():
        return _stored(path, wanted)
    trained = train(config, folder, should_stop=should_stop, progress=progress)
    if should_stop():
        return None
    report = evaluate(trained)
    assert report is not None, "a comparison runs in one process"
    speeds = [r["steps_per_second"] for r in trained.metrics() if "steps_per_second" in r]
    result = Result(
        seed=seed,
        scores={name: score.score for name, score in report.scores.items()},
        signature=report.scores["bleu"].signature,
        steps=trained.checkpoints()[-1],
        steps_per_second=statistics.median(speeds) if speeds else math.nan,
        sentences_per_second=report.sentences_per_second,
    )
    text = json.dumps(dataclasses.asdict(result) | {"config": wanted}, indent=2) + "\n"
    write_whole(path, text.encode())
    return result


def _stored(path: epath.Path, wanted: Any) -> Result:
    """The result that `run_row` wrote for this config."""
    try:
        stored = json.loads(path.read_text())
        is_same, result = stored.pop("config") == wanted, Result(**stored)
    except (ValueError, KeyError, AttributeError, TypeError) as error:
        raise UserError(
            f"{path}: damaged, or of another version: remove it to score this row again"
        ) from error
    if not is_same:
        raise UserError(f"{path.parent} is of another recipe: use another --output")
    return result


def interval(values: Sequence[float]) -> float:
    """Half of the 95 % interval of the mean, by Student's t; NaN for fewer than two values."""
    if len(values) < 2:
        return math.nan
    from scipy.stats import t

    error = statistics.stdev(values) / math.sqrt(len(values))
    return float(t.ppf(0.975, len(values) - 1)) * error


def table(summaries: Sequence[Summary]) -> str:
    """The comparison as Markdown, with what its numbers mean below."""
    first = summaries[0]
    columns = ["model", "BLEU", "against the first", "chrF++", "parameters", "d_ff"]
    columns += ["steps/s", "sentences/s", "seeds"]
    lines = [columns, ["---", *["---:"] * (len(columns) - 1)]]
    for summary in summaries:
        difference = summary.difference(first, "bleu") if summary is not first else []
        found = [result.sentences_per_second for result in summary.results]
        speeds = [speed for speed in found if speed is not None]
        lines.append(
            [
                summary.row.name,
                _mean(summary.scores("bleu")),
                _mean(difference, sign="+") if difference else "",
                _mean(summary.scores("chrf")),
                f"{summary.row.parameters:,}",
                str(summary.row.config.model.d_ff),
                f"{summary.steps_per_second:.2f}",
                f"{statistics.median(speeds):.1f}" if speeds else "",
                str(len(summary.results)),
            ]
        )
    text = "".join(f"| {' | '.join(line)} |\n" for line in lines)
    taken = sorted({result.steps for each in summaries for result in each.results})
    steps = " to ".join(f"{count:,}" for count in dict.fromkeys((taken[0], taken[-1])))
    signature = first.results[0].signature
    return (
        f"{text}\n{steps} steps each; BLEU: {signature}. ± is the 95 % interval of the mean over "
        "seeds (Student's t); differences are taken seed by seed. Speeds are medians on this "
        "machine.\n"
    )


def _mean(values: Sequence[float], sign: str = "") -> str:
    half = interval(values)
    text = format(statistics.mean(values), f"{sign}.2f")
    return text if math.isnan(half) else f"{text} ± {half:.2f}"


def to_json(summaries: Sequence[Summary]) -> str:
    """Everything that the table and the plots show."""
    rows: list[dict[str, Any]] = [
        {
            "model": summary.row.name,
            "parameters": summary.row.parameters,
            "d_ff": summary.row.config.model.d_ff,
            "results": [dataclasses.asdict(result) for result in summary.results],
        }
        for summary in summaries
    ]
    return json.dumps(rows, indent=2) + "\n"
