"""Draws the picture and writes the tables of docs/long_documents.md.

    python docs/make_long_documents.py

Both are made of the rows in `benchmarks/results/long_documents_rates.jsonl`, as far as they are
done. The picture holds the numbers that it was drawn from, and a test compares them with the rows.
"""

import json
import math
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import matplotlib

sys.path.append(str(Path(__file__).parents[1] / "benchmarks"))  # where scripts find each other

matplotlib.use("Agg")
from matplotlib import pyplot as plt  # noqa: E402
from rows import read_rows  # noqa: E402

FIGURE = Path(__file__).with_name("figures") / "long_documents_rates.png"
PAGE = Path(__file__).with_name("long_documents.md")

#: Kind and facts of a test -> its title.
KINDS = {
    "agreement-1": "agreement",
    "recall-4": "recall of 4",
    "recall-16": "recall of 16",
    "consistency-1": "consistency",
    "order-4": "order of 4",
}
#: Models at three learning rates -> colour.
MODELS = {
    "full": "black",
    "full, convolution": "#D55E00",
    "full, no positions": "0.6",
    "decoder ssd": "#E69F00",
    "decoder gated_deltanet": "#009E73",
    "hybrid 3:1": "#0072B2",
}
LENGTHS = (64, 256, 448)  # tokens: in their table
PANEL = 256  # tokens: in their picture
BEGIN, END = "<!-- begin: make_long_documents.py -->\n", "<!-- end -->\n"


def by_rate() -> dict[str, dict[float, list[dict[str, Any]]]]:
    """Model -> learning rate -> its seeds, as far as they are trained."""
    found: dict[str, dict[float, list[dict[str, Any]]]] = {name: {} for name in MODELS}
    for row in read_rows("long_documents_rates").values():
        found[row["model"]].setdefault(row["rate"], []).append(row)
    return {
        name: {rate: sorted(rates[rate], key=lambda row: row["seed"]) for rate in sorted(rates)}
        for name, rates in found.items()
        if rates
    }


def chosen(rates: dict[float, list[dict[str, Any]]]) -> float:
    """The rate with the most right answers on the validation items, by the first seed."""
    return max(rates, key=lambda rate: rates[rate][0]["validation"])


def rate_data() -> Any:
    """Kind -> its chance, and model -> [rate, right answers of each seed] at `PANEL` tokens."""
    chance = next(iter(read_rows("long_documents_rates").values()))["chance"]
    return {
        kind: {
            "chance": chance[kind.partition("-")[0]],
            "models": {
                name: [[rate, *(share(row, kind, PANEL) for row in rates[rate])] for rate in rates]
                for name, rates in by_rate().items()
            },
        }
        for kind in KINDS
    }


def share(row: dict[str, Any], kind: str, distance: int) -> float:
    """Of right answers."""
    right, total = row["accuracy"][f"{kind}/{distance}"]
    return round(right / total, 3)


def draw_rates(data: Any) -> Any:
    """Accuracy against the learning rate, a panel for each kind."""
    figure, grid = plt.subplots(2, 3, figsize=(13, 7.6), layout="constrained")
    *panels, last = grid.flat
    for axes, (kind, panel) in zip(panels, data.items(), strict=True):
        axes.axhline(panel["chance"], color="0.5", linestyle="-.", linewidth=1)
        axes.text(1.2e-3, panel["chance"], "a guess", color="0.4", fontsize=8, va="bottom")
        for name, points in panel["models"].items():
            rates, firsts = [point[0] for point in points], [point[1] for point in points]
            axes.plot(rates, firsts, "o-", color=MODELS[name], linewidth=2, label=name)
            for rate, _, *others in points:
                axes.plot([rate] * len(others), others, "_", color=MODELS[name], markersize=14)
        axes.set_xscale("log")
        axes.set_xlim(1.1e-3, 1.4e-2)
        axes.set_xticks([1.3e-3, 4e-3, 1.2e-2], ["1.3e-3", "4e-3", "1.2e-2"])
        axes.minorticks_off()
        axes.set_ylim(-0.03, 1.03)
        axes.set_title(KINDS[kind])
        axes.grid(alpha=0.25)
        axes.set_xlabel("peak learning rate")
        axes.set_ylabel(f"right answers at {PANEL} tokens")
    last.axis("off")
    last.legend(*grid[0, 0].get_legend_handles_labels(), loc="upper center")
    last.text(
        0.5,
        0.4,
        "Names say what is not full attention with\nsinusoidal positions.\n"
        "Dots and lines: the first seed.\nDashes: the second and the third, at the rate\n"
        "that the validation items chose.",
        ha="center",
        va="top",
        transform=last.transAxes,
    )
    return figure


def table(columns: list[str], rows: Iterable[list[str]]) -> str:
    """A table in Markdown; its first column is text."""
    lines = [columns, ["---", *["---:"] * (len(columns) - 1)], *rows]
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)


def cell(of_seeds: list[list[int]]) -> str:
    """The share of right answers of all seeds, and of the lowest and the highest one."""
    shares = [rounded(*each) for each in of_seeds]
    right, total = (sum(column) for column in zip(*of_seeds, strict=True))
    return f"{rounded(right, total)} ({min(shares)}–{max(shares)})"


def rounded(right: float, total: int) -> str:
    """A share with two digits, half up: 39 of 40 are 0.98, although 0.975 is less in binary."""
    return f"{math.floor(100 * right / total + 0.5) / 100:.2f}"


def rates_tables() -> str:
    """What the page says of the models at three rates."""
    models = by_rate()
    rates = sorted({rate for each in models.values() for rate in each})
    lines = []
    for name, each in models.items():
        best, cells = chosen(each), []
        for rate in rates:
            cells.append(f"{each[rate][0]['validation']:.2f}" if rate in each else "–")
            if rate == best:
                cells[-1] = f"**{cells[-1]}**"
        row = each[best][0]
        lines.append([name, *cells, f"{row['d_ff']}", f"{row['cpu_seconds_per_step']:.2f}"])
    titles = [f"at {rate:.1e}".replace("e-0", "e-").replace(".0e", "e") for rate in rates]
    columns = ["model", *titles, "d_ff", "CPU s/step"]
    answers = []
    for name, each in models.items():
        seeds = each[chosen(each)]
        for distance in LENGTHS:
            keys = [f"{kind}/{distance}" for kind in KINDS]
            cells = [cell([row["accuracy"][key] for row in seeds]) for key in keys]
            answers.append([name, str(distance), str(len(seeds)), *cells])
    return (
        f"{table(columns, lines)}\n{table(['model', 'tokens', 'seeds', *KINDS.values()], answers)}"
    )


def with_tables(page: str) -> str:
    """The page with the tables of today between its marks."""
    before, _, rest = page.partition(BEGIN)
    return f"{before}{BEGIN}\n{rates_tables()}\n{END}{rest.partition(END)[2]}"


def main() -> None:
    """Writes the tables and the picture."""
    PAGE.write_text(with_tables(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
    data = rate_data()
    figure = draw_rates(data)
    figure.savefig(FIGURE, dpi=110, metadata={"Data": json.dumps(data)})
    plt.close(figure)


if __name__ == "__main__":
    main()
