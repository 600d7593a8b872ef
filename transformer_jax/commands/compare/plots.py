"""The pictures of a comparison: scores with their noise, scores against cost, and curves."""

from collections.abc import Mapping, Sequence
from typing import Any

from etils import epath

from transformer_jax.commands.compare.tables import LEAST, Spread, Summary
from transformer_jax.viewing.plots import new_figure, save


def plot_scores(summaries: Sequence[Summary], path: epath.Path) -> epath.Path:
    """A point for each seed, the mean of each row, and its 95 % interval; the best row on top.

    The band is the interval of the first row.
    """
    ordered = sorted(summaries, key=lambda summary: summary.mean("bleu"))
    figure, axes = new_figure(8, 0.35 * len(ordered) + 1.2)
    for place, (summary, mean, half) in enumerate(_means(ordered)):
        scores = summary.scores("bleu")
        colour = "tab:red" if summary is summaries[0] else "tab:blue"
        axes.errorbar(mean, place, xerr=half, fmt="o", color=colour, capsize=3, zorder=3)
        axes.plot(scores, [place] * len(scores), "|", color="0.4", markersize=9, zorder=2)
        axes.annotate(f"{mean:.2f}", (mean, place), (0, 5), textcoords="offset points", fontsize=8)
        if summary is summaries[0]:
            axes.axvline(mean, color="tab:red", linestyle="--", linewidth=1)
            if half is not None:
                axes.axvspan(mean - half, mean + half, color="tab:red", alpha=0.12)
    axes.set_yticks(range(len(ordered)), [summary.row.name for summary in ordered])
    has_bars = max(len(summary.results) for summary in summaries) >= LEAST
    bars = "; bars: 95 % interval, ticks: single seeds" if has_bars else "; ticks: single seeds"
    axes.set_xlabel(f"test BLEU{bars}")
    axes.grid(axis="x", alpha=0.3)
    axes.margins(y=0.12)
    return save(figure, path)


def plot_cost(summaries: Sequence[Summary], path: epath.Path) -> epath.Path:
    """BLEU of each row against the time of a training step, relative to the first row's."""
    figure, axes = new_figure(7, 4.5)
    first = summaries[0].median("steps_per_second")
    for summary, mean, half in _means(summaries):
        if not first or not (speed := summary.median("steps_per_second")):
            continue  # it diverged
        colour = "tab:red" if summary is summaries[0] else "tab:blue"
        axes.errorbar(first / speed, mean, yerr=half, fmt="o", color=colour, capsize=3)
        name = summary.row.name
        axes.annotate(name, (first / speed, mean), (6, 4), textcoords="offset points", fontsize=9)
    axes.set_xlabel(f"time of a training step, times that of {summaries[0].row.name}")
    axes.set_ylabel("test BLEU")
    axes.grid(alpha=0.3)
    axes.margins(0.15)
    axes.set_ylim(top=min(100.0, axes.get_ylim()[1]))
    return save(figure, path)


def plot_curves(points: Sequence[Mapping[str, Any]], path: epath.Path) -> epath.Path:
    """The loss against the step and against the minutes: a colour for each row, a line a seed.

    Args:
        points: lines of curves.csv.
        path: where to write the PNG.
    """
    figure, both = new_figure(10, 4, 1, 2, sharey=True)
    models = list(dict.fromkeys(point["model"] for point in points))
    for axes, key in zip(both, ("step", "minutes"), strict=True):
        for model, seed in dict.fromkeys((point["model"], point["seed"]) for point in points):
            curve = [each for each in points if (each["model"], each["seed"]) == (model, seed)]
            colour = f"C{models.index(model) % 10}"
            x, y = ([each[name] for each in curve] for name in (key, "nll"))
            axes.plot(x, y, color=colour, linewidth=1, label=model)
        axes.set(xlabel=key, xlim=(0, None))
        axes.grid(alpha=0.3)
    lines, labels = axes.get_legend_handles_labels()
    by_model = dict(zip(labels, lines, strict=True))
    axes.legend(by_model.values(), by_model, fontsize=8)
    both[0].set_ylabel("training negative log-likelihood a token")
    return save(figure, path)


def _means(summaries: Sequence[Summary]) -> list[tuple[Summary, float, float | None]]:
    """Each row with its mean BLEU and half of the interval."""
    spread = Spread.of(each.scores("bleu") for each in summaries)
    return [(each, each.mean("bleu"), spread.half(len(each.results))) for each in summaries]
