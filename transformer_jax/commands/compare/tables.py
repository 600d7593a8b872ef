"""A comparison's results as tables and data: Markdown, CSV, LaTeX, JSON, and the curves."""

import csv
import dataclasses
import io
import json
import math
import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from transformer_jax.commands.compare.results import Result
from transformer_jax.commands.compare.rows import Row

#: Seeds that an interval needs.
LEAST = 3
#: Column of table.csv -> its title in the table, and the form of its numbers.
COLUMNS = {
    "model": ("model", "{}"),
    "point": ("chosen", "{}"),
    "validation": ("validation", "{:.2f}"),
    "bleu": ("BLEU", "{:.2f}"),
    "difference": ("against the first", "{:+.2f}"),
    "chrf": ("chrF++", "{:.2f}"),
    "parameters": ("parameters", "{:,}"),
    "d_ff": ("d_ff", "{}"),
    "gflops_per_step": ("GFLOP/step", "{:.2f}"),
    "steps_per_second": ("steps/s", "{:.2f}"),
    "cpu_seconds_per_step": ("CPU s/step", "{:.3f}"),
    "peak_gb": ("peak GB", "{:.2f}"),
    "sentences_per_second": ("sentences/s", "{:.1f}"),
    "seeds": ("seeds", "{}"),
}
_LATEX = str.maketrans(
    {char: f"\\{char}" for char in "&%$#_{}"}
    | {"±": r"$\pm$", "<": "$<$", ">": "$>$", "\\": r"\textbackslash{}"}
    | {"~": r"\textasciitilde{}", "^": r"\textasciicircum{}"}
)


@dataclass(frozen=True)
class Summary:
    """What is known of a row."""

    row: Row  #: at the chosen point of the grid
    results: Sequence[Result]  #: of this point, in the order of their seeds
    tried: Sequence[tuple[Row, Result]]  #: every point, with the first seed

    def mean(self, metric: str) -> float:
        """Of the scores."""
        return statistics.mean(self.scores(metric))

    def scores(self, metric: str) -> list[float]:
        """One score for each seed."""
        return [result.scores[metric] for result in self.results]

    def median(self, measure: str) -> float | None:
        """Of a field of `Result` over the seeds; None if none was measured."""
        known = [x for each in self.results if (x := getattr(each, measure, None)) is not None]
        return statistics.median(known) if known else None


class Spread(NamedTuple):
    """The standard deviation over seeds, pooled over rows, and its degrees of freedom."""

    deviation: float
    degrees: int

    @classmethod
    def of(cls, samples: Iterable[Sequence[float]]) -> "Spread":
        """Of the scores of each row."""
        several = [sample for sample in samples if len(sample) > 1]
        degrees = sum(len(sample) - 1 for sample in several)
        squares = sum((len(sample) - 1) * statistics.variance(sample) for sample in several)
        return cls(math.sqrt(squares / degrees) if degrees else math.nan, degrees)

    def half(self, *seeds: int, together: int = 1) -> float | None:
        """Half of the 95 % interval of a mean over so many seeds, or of a difference of two means.

        Args:
            seeds: of each mean.
            together: so many intervals hold at once (Bonferroni).

        Returns:
            None below `LEAST` seeds.
        """
        if min(seeds) < LEAST:
            return None
        from scipy.stats import t

        error = self.deviation * math.sqrt(sum(1 / count for count in seeds))
        return float(t.ppf(1 - 0.025 / together, self.degrees)) * error


def records(summaries: Sequence[Summary]) -> list[dict[str, Any]]:
    """The table as numbers: the lines of table.csv."""
    first, *others = summaries
    metrics = "bleu", "chrf"
    spreads = {name: Spread.of(each.scores(name) for each in summaries) for name in metrics}
    found = []
    for each in summaries:
        seeds, bleu = len(each.results), each.scores("bleu")
        record: dict[str, Any] = {name: each.median(name) for name in COLUMNS}
        record |= {"model": each.row.name, "point": each.row.point, "seeds": seeds}
        record |= {"parameters": each.row.parameters, "d_ff": each.row.config.model.d_ff}
        for name, spread in spreads.items():
            record[name], record[f"{name}_half"] = each.mean(name), spread.half(seeds)
        if each is not first:
            record["difference"] = each.mean("bleu") - first.mean("bleu")
            both = seeds, len(first.results)
            record["difference_half"] = spreads["bleu"].half(*both, together=len(others))
        record["deviation"] = statistics.stdev(bleu) if seeds > 1 else None
        found.append(record)
    return found


def _lines(summaries: Sequence[Summary]) -> list[Sequence[str]]:
    """The table as text, its head first, without columns that nothing is in."""
    columns, found = [], records(summaries)
    for name, (title, form) in COLUMNS.items():
        column = [title]
        for record in found:
            value, half = record[name], record.get(f"{name}_half")
            text = "" if value is None else form.format(value)
            column.append(text if half is None else f"{text} ± {half:.2f}")
        columns += [column] if any(column[1:]) else []
    return list(zip(*columns, strict=True))


def markdown(summaries: Sequence[Summary]) -> str:
    """The tables, with what their numbers mean below."""
    results = [result for each in summaries for result in each.results]
    taken, others = sorted({result.steps for result in results}), len(summaries) - 1
    steps = " to ".join(f"{count:,}" for count in dict.fromkeys((taken[0], taken[-1])))
    notes = f"{steps} steps each; BLEU: {max(result.signature for result in results)}. "
    notes += "Costs are medians on this machine, FLOPs what the model needs. "
    spread = Spread.of(each.scores("bleu") for each in summaries)
    if max(len(each.results) for each in summaries) < LEAST:
        notes += f"There is no interval below {LEAST} seeds."
    else:
        notes += (
            f"± is a 95 % interval over seeds (Student's t; deviation {spread.deviation:.2f} BLEU, "
            f"pooled over rows, {spread.degrees} degrees of freedom), without the test set's chance"
        )
        several = f"; the {others} differences hold together (Bonferroni)" if others > 1 else ""
        notes += f"{several}."
    text = f"{_table(_lines(summaries))}\n{notes}\n"
    if not summaries[0].row.point:
        return text
    tried: list[Sequence[str]] = [("model", "tried", "validation", "test", "chosen")]
    for each in summaries:
        for row, result in each.tried:
            test = f"{result.scores['bleu']:.2f}" if result.signature else "diverged"
            is_chosen = "yes" if row == each.row else ""
            tried.append((row.name, row.point, f"{result.validation:.2f}", test, is_chosen))
    return (
        f"{text}\nBLEU at each point of the grid, with the first seed. The validation set chose, "
        f"the test set had no part in it.\n\n{_table(tried)}"
    )


def _table(lines: Sequence[Sequence[str]]) -> str:
    ruled = [lines[0], ["---", *["---:"] * (len(lines[0]) - 1)], *lines[1:]]
    return "".join(f"| {' | '.join(line)} |\n" for line in ruled)


def latex(summaries: Sequence[Summary]) -> str:
    """The table as a `tabular`, which needs no package."""
    lines = _lines(summaries)
    head, *body = (" & ".join(cell.translate(_LATEX) for cell in line) + r" \\" for line in lines)
    begin = f"\\begin{{tabular}}{{l{'r' * (len(lines[0]) - 1)}}}"
    return "\n".join([begin, head, r"\hline", *body, r"\end{tabular}", ""])


def comma_separated(lines: Sequence[Mapping[str, Any]]) -> str:
    """CSV, with the keys of all lines as its head."""
    text = io.StringIO()
    writer = csv.DictWriter(text, dict.fromkeys(key for line in lines for key in line))
    writer.writeheader()
    writer.writerows(lines)
    return text.getvalue()


def to_json(summaries: Sequence[Summary]) -> str:
    """The table as numbers, with every training."""
    rows = [
        record
        | {"results": [dataclasses.asdict(result) for result in each.results]}
        | {"grid": {row.point: dataclasses.asdict(result) for row, result in each.tried}}
        for each, record in zip(summaries, records(summaries), strict=True)
    ]
    return json.dumps(rows, indent=2) + "\n"
