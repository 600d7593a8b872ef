"""A comparison's trainings, what is known of them, and the files that show it."""

from collections.abc import Iterator, Sequence

from etils import epath

from transformer_jax.commands.compare.jobs import chosen, due
from transformer_jax.commands.compare.plots import plot_cost, plot_curves, plot_scores
from transformer_jax.commands.compare.results import Result, stored_result, with_seed
from transformer_jax.commands.compare.rows import Row
from transformer_jax.commands.compare.tables import (
    Summary,
    comma_separated,
    latex,
    markdown,
    records,
    to_json,
)
from transformer_jax.paths import write_whole
from transformer_jax.runs.metrics import read_metrics

_CURVES = ("step", "minutes", "loss", "nll")


class Comparison:
    """Rows, each at the points of its grid, and their trainings.

    A training is a row at a point, and the number of its seed.

    Attributes:
        output: the folder of all files.
    """

    def __init__(self, rows: Sequence[Sequence[Row]], seeds: int, output: epath.Path) -> None:
        self._rows, self._seeds, self.output = rows, seeds, output

    def folder(self, row: Row, number: int) -> epath.Path:
        """The run folder of a training."""
        return self.output / row.folder / f"seed_{row.config.train.seed + number}"

    def result(self, row: Row, number: int) -> Result | None:
        """What is known of a training that is done.

        Raises:
            UserError: its folder is of another recipe.
        """
        return stored_result(with_seed(row.config, number), self.folder(row, number))

    def missing(self, rows: Sequence[Sequence[Row]]) -> Iterator[tuple[Row, int]]:
        """The trainings of some rows that may begin by now, the next one first."""
        trainings = due(rows, self._seeds, self._validation)
        return (each for each in trainings if self.result(*each) is None)

    def _validation(self, row: Row, number: int) -> float | None:
        result = self.result(row, number)
        return None if result is None else result.validation

    def _summaries(self) -> list[Summary]:
        """The rows with results, if the first one is among them."""
        found = []
        for points in self._rows:
            if (row := chosen(points, self._validation)) is None:
                continue
            results = [done for number in range(self._seeds) if (done := self.result(row, number))]
            tried = [(point, done) for point in points if (done := self.result(point, 0))]
            found += [Summary(row, results, tried)] if results else []
        return found if found and found[0].row in self._rows[0] else []

    def write(self) -> None:
        """Writes the tables and plots of what is there."""
        if not (summaries := self._summaries()):
            return
        first = summaries[0].row.config.train.seed
        curves = [
            {"model": each.row.name, "seed": result.seed} | {key: record[key] for key in _CURVES}
            for each in summaries
            for result in each.results
            for record in read_metrics(self.folder(each.row, result.seed - first))
            if all(key in record for key in _CURVES)
        ]
        for name, text in (
            ("table.md", markdown(summaries)),
            ("table.csv", comma_separated(records(summaries))),
            ("table.tex", latex(summaries)),
            ("rows.json", to_json(summaries)),
            ("curves.csv", comma_separated(curves)),
        ):
            write_whole(self.output / name, text.encode())
        plot_scores(summaries, self.output / "scores.png")
        plot_cost(summaries, self.output / "cost.png")
        if curves:
            plot_curves(curves, self.output / "curves.png")
