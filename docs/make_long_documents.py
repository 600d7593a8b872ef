"""Draws the pictures and writes the tables of docs/long_documents.md and its log.

    python docs/make_long_documents.py

Both are made of `benchmarks/results/long_documents*.jsonl` and `multi30k_mixers.jsonl`, as far as
their rows are done. Each picture holds the numbers that it was drawn from, and a test compares them
with the rows.
"""

import bisect
import dataclasses
import json
import math
import re
import statistics
import sys
from collections.abc import Callable, Iterable
from itertools import pairwise
from pathlib import Path
from typing import Any

import matplotlib

sys.path.append(str(Path(__file__).parents[1] / "benchmarks"))  # where scripts find each other

matplotlib.use("Agg")
from long_documents import CONFIG, TRAINED  # noqa: E402
from matplotlib import pyplot as plt  # noqa: E402
from matplotlib.ticker import FuncFormatter, LogLocator  # noqa: E402
from rows import read_rows  # noqa: E402

from transformer_jax.data.sources.grammar_documents.kinds import KINDS as GRAMMAR_KINDS  # noqa: E402

FIGURES = Path(__file__).with_name("figures")
LOG = Path(__file__).with_name("log") / "long_documents.md"
PAGE = Path(__file__).with_name("long_documents.md")

#: Kind and facts of a test -> its title.
KINDS = {
    "agreement-1": "agreement",
    "recall-4": "recall of 4",
    "recall-16": "recall of 16",
    "consistency-1": "consistency",
    "order-4": "order of 4",
}
ROLES = ("full", "encoder", "decoder", "cross", "both", "position")  # first word of a row's name
SHOWN = (256, 1024)  # tokens: in the picture of all rows
#: Rows in the plot against the distance, and in that of costs, if they are done -> colour, dashes.
DRAWN = {
    "full": ("black", "-"),
    "encoder ssd": ("#E69F00", "-"),
    "decoder rwkv": ("#009E73", "-"),
    "both ssd,window": ("#8C564B", "-"),
    "both ssd,full": ("#0072B2", "-"),
    "both ssd,full none": ("#0072B2", ":"),
    "both ssd,full t5": ("#56B4E9", "--"),
    "position t5": ("#D55E00", "--"),
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
EDGES = (16, 64, 256, 448)  # tokens: of the table of distances in training
COUNTED = 5000  # documents, for this table

Counts = dict[str, dict[int, list[int]]]  # kind -> distance -> right answers, questions


def read(name: str) -> list[dict[str, Any]]:
    """The rows of an experiment that are done: by role, and in each as they were made."""
    rows = read_rows(name).values()
    return sorted(rows, key=lambda row: ROLES.index(row["row"].partition(" ")[0]))


def by_name(rows: Iterable[dict[str, Any]]) -> dict[str, list[dict[str, Any]]]:
    """The seeds of each row."""
    found: dict[str, list[dict[str, Any]]] = {}
    for row in rows:
        found.setdefault(row["row"], []).append(row)
    return found


def counts(rows: Iterable[dict[str, Any]]) -> Counts:
    """The answers of all seeds of a row together."""
    found: Counts = {kind: {} for kind in KINDS}
    for row in rows:
        for key, (right, total) in row["accuracy"].items():
            kind, _, distance = key.partition("/")
            old = found[kind].setdefault(int(distance), [0, 0])
            found[kind][int(distance)] = [old[0] + right, old[1] + total]
    return found


def interval(right: int, total: int) -> float:
    """Half the 95 % interval of Wilson of a share of right answers."""
    z, p = 1.96, right / total
    spread = math.sqrt(p * (1 - p) / total + z * z / (4 * total * total))
    return z * spread / (1 + z * z / total)


def asked_of_all(rows: list[dict[str, Any]], kind: str) -> list[int]:
    """The distances at which every seed was tested: the mean of the others is that of the best."""
    return sorted(set.intersection(*(set(counts([row])[kind]) for row in rows)))


def spread(rows: list[dict[str, Any]], kind: str, distance: int) -> list[float]:
    """Distance, and right answers of the middle, the lowest and the highest seed.

    A mean would hide that some seeds find a thing and others do not.
    """
    of_seeds = [counts([row])[kind][distance] for row in rows]
    shares = [right / total for right, total in of_seeds]
    return [
        distance,
        *(round(x, 3) for x in (statistics.median_low(shares), min(shares), max(shares))),
    ]


def distance_data() -> Any:
    """Kind -> row -> `spread` of each distance, and the chance of each kind."""
    rows = by_name(read("long_documents"))
    chance = next(iter(rows.values()))[0]["chance"]
    return {
        kind: {
            "chance": chance[kind.partition("-")[0]],
            "rows": {
                name: [spread(rows[name], kind, d) for d in asked_of_all(rows[name], kind)]
                for name in DRAWN
                if name in rows
            },
        }
        for kind in KINDS
    }


def overview_data() -> Any:
    """Chance of each kind, and of each row the right answers of the middle seed, near and far.

    None where none was asked.
    """
    rows = by_name(read("long_documents"))
    chance = next(iter(rows.values()))[0]["chance"]
    found = {}
    for name, each in rows.items():
        label = f"{name} ({len(each)} seeds)" if len(each) > 1 else name
        found[label] = [
            spread(each, kind, distance)[1] if distance in asked_of_all(each, kind) else None
            for distance in SHOWN
            for kind in KINDS
        ]
    return {
        "chance": [chance[kind.partition("-")[0]] for kind in KINDS] * len(SHOWN),
        "rows": found,
    }


def cost_data() -> Any:
    """Row -> [length, ms of a step, MiB, pieces a second]; none while there is only one row."""
    found = {
        row["row"]: [
            [int(length), each["step_ms"], each["step_mib"], each["pieces_per_second"]]
            for length, each in row["costs"].items()
        ]
        for row in read("long_documents_costs")
        if row["row"] in DRAWN
    }
    return found if len(found) > 1 else {}


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


def draw_distance(data: Any) -> Any:
    """Accuracy against distance, a panel for each kind."""
    figure, grid = plt.subplots(2, 3, figsize=(13, 7.6), layout="constrained")
    *panels, last = grid.flat
    for axes, (kind, panel) in zip(panels, data.items(), strict=True):
        axes.axvspan(10, TRAINED, color="0.95", zorder=0)
        axes.axhline(panel["chance"], color="0.5", linestyle="-.", linewidth=1)
        axes.text(12, panel["chance"], "a guess", color="0.4", fontsize=8, va="bottom")
        for name, points in panel["rows"].items():
            color, dashes = DRAWN[name]
            distances, shares, *others = zip(*points, strict=True)
            axes.plot(distances, shares, dashes, marker=".", color=color, linewidth=2, label=name)
            for of_seed in others:
                axes.plot(distances, of_seed, dashes, color=color, linewidth=0.6, alpha=0.6)
        axes.set_xscale("log", base=2)
        axes.set_xticks([16, 64, 256, 1024, 8000], ["16", "64", "256", "1,024", "8,000"])
        axes.set_ylim(-0.03, 1.03)
        axes.set_title(KINDS[kind])
        axes.grid(alpha=0.25)
        axes.set_xlabel("tokens to what decides")
        axes.set_ylabel("right answers")
    last.axis("off")
    last.legend(*grid[0, 0].get_legend_handles_labels(), loc="upper center", ncols=2)
    last.text(
        0.5,
        0.66,
        "Grey: up to the longest documents in training.\n"
        "Names say what is not full attention with\nsinusoidal positions.\n"
        "Where there are three seeds, the thick line is\n"
        "the middle one, thin lines are the others.\n"
        "A line ends where a seed was not asked farther,\nas its last answers there were guesses.",
        ha="center",
        va="top",
        transform=last.transAxes,
    )
    return figure


def draw_overview(data: Any) -> Any:
    """A table of colours: rows against kinds, near and far."""
    rows, chances = data["rows"], data["chance"]
    columns = [*KINDS.values()] * len(SHOWN)
    figure, axes = plt.subplots(figsize=(10, 1.8 + 0.27 * len(rows)), layout="constrained")
    # From a guess, 0, to right, 1: the chance of a guess is not the same in all columns.
    found = [
        [
            math.nan if value is None else max(0.0, (value - chance) / (1 - chance))
            for value, chance in zip(row, chances, strict=True)
        ]
        for row in rows.values()
    ]
    axes.imshow(found, cmap="Blues", vmin=0, vmax=1, aspect="auto")
    for y, row in enumerate(rows.values()):
        for x, value in enumerate(row):
            text = "–" if value is None else rounded(value, 1)
            color = "white" if found[y][x] > 0.6 else "black"
            axes.text(x, y, text, ha="center", va="center", fontsize=8, color=color)
    axes.set_yticks(range(len(rows)), list(rows))
    axes.set_xticks(range(len(columns)), columns, rotation=30, ha="left")
    axes.xaxis.tick_top()
    axes.axvline(len(KINDS) - 0.5, color="black")
    near, far = SHOWN
    figure.suptitle(
        f"Right answers: {near:,} tokens away, left, and {far:,}, right (more than in training).\n"
        "White: a guess. Dark: all right. With several seeds, the middle one. –: was not asked"
    )
    return figure


def draw_cost(data: Any) -> Any:
    """Step, memory and decoding against the length; numbers stand at the longest."""
    figure, grid = plt.subplots(1, 3, figsize=(13, 4.4), layout="constrained")
    titles = ("a training step: seconds", "a training step: GiB", "decoding: pieces a second")
    units = (1e-3, 2**-10, 1.0)
    for column, (axes, title, unit) in enumerate(zip(grid, titles, units, strict=True)):
        highest = max(points[-1][1 + column] for points in data.values())
        for name, points in data.items():
            lengths, values = [p[0] for p in points], [unit * p[1 + column] for p in points]
            color, dashes = DRAWN[name]
            axes.loglog(lengths, values, dashes, marker=".", color=color, label=name)
            axes.annotate(
                f" {values[-1]:.3g}",
                (lengths[-1], values[-1]),
                color=color,
                va="bottom" if points[-1][1 + column] == highest else "top",
            )
        axes.set_title(title)
        axes.set_xlabel("tokens of one document, on both sides")
        axes.set_xlim(50, 18_000)
        axes.set_xticks([64, 512, 2048, 8192], ["64", "512", "2,048", "8,192"])
        axes.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5) if column == 2 else (1,)))
        axes.yaxis.set_major_formatter(FuncFormatter(lambda y, _: f"{y:,.6g}"))
        axes.minorticks_off()
        axes.grid(alpha=0.25)
    figure.legend(*grid[0].get_legend_handles_labels(), loc="outside lower center", ncols=8)
    figure.suptitle(
        "Names say what is not plain full attention with sinusoidal positions. "
        "Two CPU cores, one document at a time"
    )
    return figure


FIGURE: dict[str, tuple[Callable[[], Any], Callable[[Any], Any]]] = {
    "long_documents_rates.png": (rate_data, draw_rates),
    "long_documents_distance.png": (distance_data, draw_distance),
    "long_documents_rows.png": (overview_data, draw_overview),
    "long_documents_cost.png": (cost_data, draw_cost),
}

HEAD = """# Log: long documents

The rows at one learning rate, 4e-3, from `benchmarks/results/long_documents.jsonl`. What was
concluded from them: [Long documents at one learning rate](long_documents_one_rate.md).
`python docs/make_long_documents.py` writes this page.

The first tables have right answers by the tokens between a word and what decides it. With one seed
± is half the width of Wilson's 95 % interval; with several the answers of all are counted together,
and the lowest and the highest seed are in brackets. All models get the same questions. A kind whose
answers at 1,024 tokens or more are not shown to be better than guesses (p > 0.01; with 40 questions
0.53, 0.45 and 0.70 right answers are, where a guess is right in 1/3, 1/4 and 1/2) was not tested
farther (–), but in three older rows: the first seeds of `full`, `encoder linear` and `encoder
window`. "1 of 3" says how many seeds were tested there: those that were better before.

```sh
python benchmarks/long_documents.py --jobs=2
```
"""

TRAININGS = """
d-BLEU is of the first 100 documents of the validation set, of 2 to 63 sentences and half of them of
at most four, each translated as one block; "divided" is the share of blocks whose translation had
another number of sentences at first, so that they were translated again in parts. The first rows
that were made lack both, and so does `encoder h3`. BLEU of sentences is of 100 single sentences out
of their documents: no document in training is as short, and some of their words cannot be known.
The script does not make it any more. "Known" is recall of 4 at 64 tokens where training had the
pairs of word and meaning, unlike those of the tables above; the first rows lack it. Steps a second
are of one CPU core, which was shared, or of an H100 on which 14 models were trained at once; the
tests of these ran on the CPU.

"""

MARKS = f"""
Shares of the marked words of each kind, by the tokens to what decides them, in {COUNTED:,}
documents of this kind as they are in training. Few are far away: a model that fails at 448 tokens
may have seen too few. Recall has more of these, as its documents have many marked words.

"""

MULTI30K = """
English to German, test_2016_flickr, beam 4: the model that `from_files` chooses for 29,000 pairs
(d_model 192, 3 + 3 layers), after 3,000 steps of 1,024 tokens, one core of an AMD EPYC with AVX-512
bf16 for each row. Minutes are of training alone. Sparse mixers have options for short sentences,
which stand in the script.

```sh
python benchmarks/multi30k_mixers.py --jobs=2
```

"""


def table(columns: list[str], rows: Iterable[list[str]]) -> str:
    """A table in Markdown; its first column is text."""
    lines = [columns, ["---", *["---:"] * (len(columns) - 1)], *rows]
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)


def cell(of_seeds: list[list[int]], seeds: int) -> str:
    """The share of right answers; with its interval, or the lowest and highest of several seeds."""
    if not of_seeds:
        return "–"
    right, total = (sum(column) for column in zip(*of_seeds, strict=True))
    if len(of_seeds) < seeds:
        return f"{rounded(right, total)} ({len(of_seeds)} of {seeds})"
    if seeds == 1:
        return f"{rounded(right, total)} ± {interval(right, total):.2f}"
    lowest, *_, highest = sorted(rounded(*each) for each in of_seeds)
    return f"{rounded(right, total)} ({lowest}–{highest})"


def rounded(right: float, total: int) -> str:
    """A share with two digits, half up: 39 of 40 are 0.98, although 0.975 is less in binary."""
    return f"{math.floor(100 * right / total + 0.5) / 100:.2f}"


def marks_table() -> str:
    """How far the marked words of the first documents in training are from what decides them."""
    source = dataclasses.replace(CONFIG.data.source, documents=COUNTED)
    found = {name: [0] * (len(EDGES) + 1) for name in GRAMMAR_KINDS}
    for name, buckets in found.items():
        of_kind = dataclasses.replace(source, kinds=(name,))
        for number in range(COUNTED):
            lines = of_kind.lines("train", number)
            lengths = [length(line.pair[1]) for line in lines]
            for place, line in enumerate(lines):
                if line.decided_by is not None:
                    distance = 2 + sum(lengths[line.decided_by + 1 : place])
                    buckets[bisect.bisect_right(EDGES, distance)] += 1
    columns = [
        "kind",
        f"< {EDGES[0]}",
        *(f"{a}–{b - 1}" for a, b in pairwise(EDGES)),
        f"{EDGES[-1]} or more",
    ]
    lines = [
        [name, *(f"{count / sum(buckets):.2%}" for count in buckets)]
        for name, buckets in found.items()
    ]
    return f"\n## Distances in training\n{MARKS}{table(columns, lines)}"


def length(sentence: str) -> int:
    """The pieces of a sentence and its separator, where every word is one piece."""
    return len(re.findall(r"\w+|[^\w\s]", sentence)) + 1


def accuracy_tables() -> str:
    """Accuracy by distance, a table for each kind."""
    parts = []
    rows = by_name(read("long_documents"))
    for kind, title in KINDS.items():
        distances = sorted({d for each in rows.values() for d in counts(each)[kind]})
        lines = []
        for name, each in rows.items():
            seeds = [counts([row])[kind] for row in each]
            cells = [
                cell([of_seed[d] for of_seed in seeds if d in of_seed], len(seeds))
                for d in distances
            ]
            lines.append([name, str(len(each)), *cells])
        columns = ["row", "seeds", *(f"{d:,}" for d in distances)]
        parts.append(f"\n## {title.capitalize()}\n\n{table(columns, lines)}")
    return "".join(parts)


def training_table() -> str:
    """What each model is, how its training went, and how it translates."""
    lines = []
    for row in read("long_documents"):
        documents = row.get("documents", {})
        divided, blocks = documents.get("divided", (0, 0))
        lines.append(
            [
                f"{row['row']}, seed {row['seed']}",
                f"{row['parameters']:,}",
                str(row["d_ff"]),
                f"{row['loss']:.3f}",
                f"{documents['d_bleu']:.1f}" if documents else "–",
                f"{divided / blocks:.0%}" if documents else "–",
                f"{row['bleu']:.1f}" if "bleu" in row else "–",
                rounded(*row["known"]) if "known" in row else "–",
                f"{row['steps_per_second']:.2f}",
                row.get("device", "cpu").removesuffix(" 80GB HBM3"),
            ]
        )
    columns = ["model", "parameters", "d_ff", "loss", "d-BLEU", "divided", "BLEU of sentences"]
    columns += ["known"]
    return f"\n## Trainings\n{TRAININGS}{table([*columns, 'steps/s', 'trained on'], lines)}"


def multi30k_table() -> str:
    """BLEU on Multi30k."""
    lines = [
        [
            f"{row['row']}, seed {row['seed']}",
            f"{row['scores']['bleu']:.1f}",
            f"{row['scores']['chrf']:.1f}",
            f"{row['parameters']:,}",
            f"{row['steps'] / row['steps_per_second'] / 60:.0f}",
            f"{row['sentences_per_second']:.0f}",
        ]
        for row in read("multi30k_mixers")
    ]
    columns = ["model", "BLEU", "chrF", "parameters", "minutes", "sentences/s"]
    return f"\n## Multi30k\n{MULTI30K}{table(columns, lines)}"


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
            cells = [cell([row["accuracy"][key] for row in seeds], len(seeds)) for key in keys]
            answers.append([name, str(distance), str(len(seeds)), *cells])
    return (
        f"{table(columns, lines)}\n{table(['model', 'tokens', 'seeds', *KINDS.values()], answers)}"
    )


def with_tables(page: str) -> str:
    """The page with the tables of today between its marks."""
    before, _, rest = page.partition(BEGIN)
    return f"{before}{BEGIN}\n{rates_tables()}\n{END}{rest.partition(END)[2]}"


def log() -> str:
    """The log: every row that is done."""
    return HEAD + accuracy_tables() + training_table() + marks_table() + multi30k_table()


def figures() -> dict[str, Any]:
    """The numbers of each picture whose rows are there."""
    return {name: data for name, (data_of, _) in FIGURE.items() if (data := data_of())}


def main() -> None:
    """Writes the log and the pictures."""
    LOG.write_text(log(), encoding="utf-8")
    PAGE.write_text(with_tables(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
    for name, data in figures().items():
        figure = FIGURE[name][1](data)
        figure.savefig(FIGURES / name, dpi=110, metadata={"Data": json.dumps(data)})
        plt.close(figure)


if __name__ == "__main__":
    main()
