"""The two pictures of a comparison: scores with their noise, and scores against cost."""

import statistics
from collections.abc import Sequence

from etils import epath

from transformer_jax.commands.compare.results import Summary, interval
from transformer_jax.viewing.plots import new_figure, save


def plot_scores(summaries: Sequence[Summary], path: epath.Path) -> epath.Path:
    """A point for each seed, the mean of each row, and its 95 % interval; the best row on top.

    The band is the interval of the first row.
    """
    ordered = sorted(summaries, key=lambda summary: statistics.mean(summary.scores("bleu")))
    figure = new_figure(8, 0.35 * len(ordered) + 1.2)
    axes = figure.subplots()
    for place, summary in enumerate(ordered):
        scores = summary.scores("bleu")
        colour = "tab:red" if summary is summaries[0] else "tab:blue"
        mean, half = statistics.mean(scores), interval(scores)
        axes.errorbar(mean, place, xerr=half, fmt="o", color=colour, capsize=3, zorder=3)
        axes.plot(scores, [place] * len(scores), "|", color="0.4", markersize=9, zorder=2)
        axes.annotate(f"{mean:.1f}", (mean, place), (0, 5), textcoords="offset points", fontsize=8)
    mean, half = statistics.mean(summaries[0].scores("bleu")), interval(summaries[0].scores("bleu"))
    if half == half:
        axes.axvspan(mean - half, mean + half, color="tab:red", alpha=0.12)
    axes.axvline(mean, color="tab:red", linestyle="--", linewidth=1)
    axes.set_yticks(range(len(ordered)), [summary.row.name for summary in ordered])
    axes.set_xlabel("test BLEU; bars: 95 % interval over seeds, ticks: single seeds")
    axes.grid(axis="x", alpha=0.3)
    axes.margins(y=0.12)
    return save(figure, path)


def plot_cost(summaries: Sequence[Summary], path: epath.Path) -> epath.Path:
    """BLEU of each row against the time of a training step, relative to the first row's."""
    figure = new_figure(7, 4.5)
    axes = figure.subplots()
    for summary in summaries:
        cost = summaries[0].steps_per_second / summary.steps_per_second
        scores = summary.scores("bleu")
        mean, half = statistics.mean(scores), interval(scores)
        colour = "tab:red" if summary is summaries[0] else "tab:blue"
        axes.errorbar(cost, mean, yerr=half, fmt="o", color=colour, capsize=3)
        name = summary.row.name
        axes.annotate(name, (cost, mean), (6, 4), textcoords="offset points", fontsize=9)
    axes.set_xlabel(f"time of a training step, times that of {summaries[0].row.name}")
    axes.set_ylabel("test BLEU")
    axes.grid(alpha=0.3)
    axes.margins(0.15)
    return save(figure, path)
