"""Draws the pictures of mixers: costs by the tables of docs/log/mixers.md, BLEU on Multi30k.

    python docs/make_mixers_figures.py

Each picture holds the numbers that it was drawn from, and a test compares them with the tables and
`benchmarks/results/multi30k_mixers.jsonl`. When one of these changes, draw them again.
"""

import json
import re
import statistics
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import matplotlib

matplotlib.use("Agg")
from matplotlib import pyplot as plt  # noqa: E402
from matplotlib.text import Text  # noqa: E402
from matplotlib.transforms import Bbox  # noqa: E402

PAGE = Path(__file__).parent / "log" / "mixers.md"
SCORES = Path(__file__).parents[1] / "benchmarks" / "results" / "multi30k_mixers.jsonl"
FIGURES = Path(__file__).with_name("figures")

#: Differences of scores below this mean nothing: three seeds of full attention are so far apart,
#: and the other rows are one seed.
NOISE = 1.0
LENGTH = "4,096"
COLOURS = {"encoder": "tab:blue", "decoder": "tab:orange", "cross": "tab:green"}
#: What a panel of the scatter shows: the role, the table of its costs, and how to call them.
COSTS = (
    ("encoder", "training, encoder", "training on"),
    ("decoder", "training, decoder", "training on"),
    ("cross", "training, cross", "training on"),
    ("decoder", "a decoding step after so many tokens", "a decoding step after"),
)
#: Places of a name beside its point, in points of 1/72 inch; the first that is free is taken.
PLACES = [
    (across, up)
    for far in (1, 2, 3)
    for across, up in (
        *((8 * far, 0), (0, 11 * far), (0, -11 * far), (-8 * far, 0)),
        *((8 * far, 9 * far), (8 * far, -9 * far), (-8 * far, 9 * far), (-8 * far, -9 * far)),
    )
]
#: Of the lines against the length, one of each kind of mixer.
DRAWN = ("full", "window", "bigbird", "linear", "s4d", "mamba")
PANELS = {
    "training, encoder": "training an encoder's layer",
    "a decoding step after so many tokens": "a decoding step",
}

Rows = dict[str, dict[str, str]]


def tables(text: str) -> Iterator[tuple[str, Rows]]:
    """(first column's title, name of a row -> column -> cell) of each table of a page.

    Of rows with one name it is the first.
    """
    for table in re.findall(r"(?:^\|.*\|\n)+", text, re.MULTILINE):
        (title, *columns), _, *rows = (
            [cell.strip() for cell in line.strip("|\n").split("|")]
            for line in table.splitlines(keepends=True)
        )
        named: Rows = {}
        for name, *cells in rows:
            named.setdefault(name.partition(",")[0], dict(zip(columns, cells, strict=True)))
        yield title, named


def cost_data(text: str) -> Any:
    """For each panel, mixer -> [milliseconds, BLEU on Multi30k]."""
    found = dict(tables(text))
    scores: dict[str, list[float]] = {}
    for row in map(json.loads, SCORES.read_text(encoding="utf-8").splitlines()):
        scores.setdefault(row["row"], []).append(row["scores"]["bleu"])
    panels = []
    for role, title, _ in COSTS:
        rows = {name: "full" if name == "full" else f"{role} {name}" for name in found[title]}
        panels.append(
            {
                name: [_number(found[title][name][LENGTH]), round(statistics.mean(scores[row]), 2)]
                for name, row in rows.items()
                if row in scores
            }
        )
    return panels


def growth_data(text: str) -> Any:
    """What is measured -> mixer -> [tokens, milliseconds, MiB] of each length."""
    found = dict(tables(text))
    return {
        title: {
            name: [
                [_number(column), *map(_number, cell.split(" ms, "))]
                for column, cell in found[title][name].items()
                if "ms" in cell
            ]
            for name in DRAWN
        }
        for title in PANELS
    }


def _number(text: str) -> float:
    return float(text.split()[0].replace(",", ""))


def draw_cost(panels: Any) -> Any:
    """Score against cost, a panel for each role; colours are roles."""
    figure, grid = plt.subplots(2, 2, figsize=(11.5, 9), sharey=True, layout="constrained")
    for axes, (role, _, label), points in zip(grid.flat, COSTS, panels, strict=True):
        full = points["full"][1]
        axes.axhspan(full - NOISE, full + NOISE, color="0.92", zorder=0)
        axes.axhline(full, color="0.6", linestyle="--", linewidth=1, zorder=1)
        axes.set_xscale("log")
        axes.xaxis.set_major_formatter("{x:,g}")
        for name, point in points.items():
            colour = "black" if name == "full" else COLOURS[role]
            axes.plot(*point, "o", color=colour, zorder=3)
        axes.set_title(f"{'cross-attention' if role == 'cross' else role}, {label} {LENGTH} tokens")
        axes.set_xlabel("milliseconds")
        axes.grid(alpha=0.25, which="major")
        axes.margins(x=0.22, y=0.08)
        axes.set_ylabel("BLEU, Multi30k")
    figure.suptitle(
        f"Up and left is better. Grey: full attention and {NOISE:g} BLEU around it, in which "
        "differences mean nothing",
        fontsize=11,
    )
    figure.canvas.draw()
    figure.set_layout_engine("none")  # names must not move what they were placed by
    for axes, points in zip(grid.flat, panels, strict=True):
        _write_names(axes, points)
    return figure


def _write_names(axes: Any, points: dict[str, list[float]]) -> None:
    """Each name beside its point, at the nearest place where it covers neither name nor point."""
    renderer = axes.figure.canvas.get_renderer()
    centers = [axes.transData.transform(point) for point in points.values()]
    taken = [Bbox.from_extents(x - 6, y - 6, x + 6, y + 6) for x, y in centers]
    for name, point in points.items():
        for across, up in PLACES:
            text = axes.annotate(
                name,
                point,
                (across, up),
                textcoords="offset points",
                fontsize=9,
                ha="left" if across > 0 else "right" if across else "center",
                va="center",
                arrowprops={"arrowstyle": "-", "color": "0.6", "linewidth": 0.6, "shrinkB": 7},
            )
            text.update_positions(renderer)
            box = Text.get_window_extent(text, renderer)  # without its line
            if not any(box.overlaps(each) for each in taken):
                taken.append(box)
                break
            text.remove()
        else:
            raise ValueError(f"no room for {name}")


def draw_growth(data: Any) -> Any:
    """Time above and memory below, against the length; each line has its name at its end."""
    figure, grid = plt.subplots(2, 2, figsize=(10, 7.5), sharex=True, layout="constrained")
    for column, (title, label) in enumerate(PANELS.items()):
        for row, unit in enumerate(("milliseconds", "MiB")):
            axes = grid[row, column]
            for number, points in enumerate(data[title].values()):
                tokens = [point[0] for point in points]
                values = [point[1 + row] for point in points]
                width = 4.0 - 0.6 * number  # a line is seen below one that covers it
                axes.loglog(tokens, values, ".-", color=f"C{number}", linewidth=width)
            axes.yaxis.set_major_formatter("{x:,g}")
            _write_ends(axes, {name: points[-1][1 + row] for name, points in data[title].items()})
            axes.set_title(f"{label}: {'time' if row == 0 else 'memory'}")
            axes.set_ylabel(unit)
            axes.grid(alpha=0.25)
            axes.set_xlim(tokens[0] * 0.85, tokens[-1] * 2.6)
            axes.set_xticks(tokens, [f"{n:,.0f}" for n in tokens], rotation=30)
            axes.minorticks_off()
    for axes in grid[1]:
        axes.set_xlabel("tokens")
    return figure


def _write_ends(axes: Any, ends: dict[str, float]) -> None:
    """The names at the right of the lines, the upper of two moved up where they would touch."""
    low, high = axes.get_ylim()
    axes.set_ylim(low, high * 1.5)
    scale, lowest = axes.transData, -1.0
    right = axes.get_lines()[0].get_xdata()[-1]
    for number, (name, value) in sorted(enumerate(ends.items()), key=lambda item: item[1][1]):
        x, y = scale.transform((right, value))
        lowest = max(y, lowest + 15)
        place = scale.inverted().transform((x + 8, lowest))
        axes.text(*place, name, color=f"C{number}", fontsize=9, va="center")


FIGURE: dict[str, tuple[Callable[[str], Any], Callable[[Any], Any]]] = {
    "mixers_cost.png": (cost_data, draw_cost),
    "mixers_scaling.png": (growth_data, draw_growth),
}


def main() -> None:
    """Draws all pictures."""
    text = PAGE.read_text(encoding="utf-8")
    for name, (data_of, draw) in FIGURE.items():
        data = data_of(text)
        figure = draw(data)
        metadata = {"Software": None, "Data": json.dumps(data)}
        figure.savefig(FIGURES / name, dpi=110, metadata=metadata)


if __name__ == "__main__":
    main()
