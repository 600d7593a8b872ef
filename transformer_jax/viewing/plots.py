"""Pictures of a run: its loss curve, and its attention."""

import io
import logging
import os
from collections.abc import Sequence
from typing import Any

import numpy as np
from etils import epath

from transformer_jax.errors import UserError
from transformer_jax.paths import write_whole
from transformer_jax.runs.folder import Run

_LOGGER = logging.getLogger(__name__)


def plot_training(run: Run, records: list[dict[str, Any]]) -> epath.Path | None:
    """Loss and validation BLEU against the step, as `plots/training.png`.

    Args:
        run: whose folder gets the picture.
        records: its metrics. One in which a number is missing or not a number is left out, and a
            warning is logged.

    Returns:
        The path, or None if the run has not logged anything yet.
    """
    losses = _points(run, records, "loss", "nll")
    bleus = _points(run, records, "validation.bleu")
    if not losses:
        return None
    figure, axes = new_figure(7, 4)
    steps, loss, nll = zip(*losses, strict=True)
    axes.plot(steps, loss, label="training loss (label-smoothed)", color="tab:blue")
    axes.plot(steps, nll, label="training negative log-likelihood", color="tab:cyan")
    axes.set(xlabel="step", ylabel="nats per target token", ylim=(0, None))
    axes.set_title(f"Training of {run.path.name}")
    axes.grid(alpha=0.3)
    lines = list(axes.get_lines())
    if bleus:
        right = axes.twinx()
        at, bleu = zip(*bleus, strict=True)
        best = max(bleu)
        label = f"validation BLEU: {best:.1f} after {at[bleu.index(best)]:,.0f} steps"
        right.plot(at, bleu, "o-", color="tab:orange", label=label)
        right.set(ylabel="BLEU (greedy)", ylim=(0, None))
        lines += right.get_lines()
    axes.legend(lines, [line.get_label() for line in lines], loc="center right")
    return save(figure, run.path / "plots" / "training.png")


def plot_bleu(runs: Sequence[Run], path: str | os.PathLike[str]) -> epath.Path:
    """Validation BLEU against the minutes of training, one curve for each run.

    Minutes count from the start of a run, with tokenizer, compilation and evaluations; the time
    in which a run was stopped does not count.

    Args:
        runs: the runs to compare.
        path: where to write the PNG.

    Raises:
        UserError: a run has no BLEU, or was recorded without minutes.
    """
    figure, axes = new_figure(7, 4)
    names = [run.path.name for run in runs]
    for run, name in zip(runs, names, strict=True):
        records = [each for each in run.metrics() if "minutes" in each]
        if not (points := _points(run, records, "validation.bleu", "minutes")):
            raise UserError(
                f"{run.path}/metrics.jsonl: no validation BLEU with its minutes: the run has no "
                "validation set, was not evaluated yet, or was trained before minutes were recorded"
            )
        label = name if names.count(name) == 1 else str(run.path)
        _, bleu, minutes = zip(*points, strict=True)
        best = max(bleu)
        label = f"{label}: {best:.1f} after {minutes[bleu.index(best)]:.0f} min"
        axes.plot(minutes, bleu, "o-", markersize=3, label=label)
    axes.set(xlabel="minutes", ylabel="validation BLEU (greedy)", xlim=(0, None), ylim=(0, None))
    axes.grid(alpha=0.3)
    axes.legend(loc="lower right")
    return save(figure, epath.Path(path))


def _points(run: Run, records: list[dict[str, Any]], *keys: str) -> list[tuple[float, ...]]:
    """(step, value of each key) of every record that has the first key."""
    points = []
    for record in records:
        if keys[0] in record:
            try:
                points.append(tuple(float(record[key]) for key in ("step", *keys)))
            except (KeyError, TypeError, ValueError, OverflowError):
                _LOGGER.warning(
                    "%s: the record of step %s has no number under %s; it is not drawn",
                    run.path / "metrics.jsonl",
                    str(record["step"])[:20],
                    " and ".join(keys),
                )
    return points


def plot_attention(
    maps: dict[str, np.ndarray],
    source: list[str],
    target: list[str],
    path: str | os.PathLike[str],
    title: str,
) -> epath.Path:
    """One heat map for every layer and head: a row of the picture is a layer.

    Args:
        maps: [H, rows, columns] by a title that begins with "encoder.", "decoder." or "cross.",
            as from `viewing.attention.attention_maps`; each row of a map sums to 1.
        source: labels of the source pieces, or words.
        target: labels of the target pieces, or words.
        path: where to write the PNG.
        title: lines above all panels, such as the two sentences; U+FFFD stands for control
            characters, which no font has.
    """
    read = ["<s>", *target[:-1]]  # the decoder's input
    axes_of = {
        "encoder": (("source", source), ("source", source)),
        "decoder": (("target, as read", read), ("target, as read", read)),
        "cross": (("target, as generated", target), ("source", source)),
    }
    as_it_is: Any = {"fontsize": 6, "parse_math": False}  # "$" begins no formula
    num_heads = max(len(heads) for heads in maps.values())
    side = 1.2 + 0.16 * max(len(source), len(target))
    width, height = side * num_heads + 1.0, side * len(maps) + 0.6
    figure, axes = new_figure(width, height, len(maps), num_heads, squeeze=False)
    for row, (name, heads) in zip(axes, maps.items(), strict=True):
        (row_name, rows), (column_name, columns) = axes_of[name.partition(".")[0]]
        for head, panel in enumerate(row):
            if head >= len(heads):
                panel.axis("off")
                continue
            image = panel.imshow(heads[head], cmap="Blues", vmin=0.0, vmax=1.0, aspect="auto")
            panel.set_xticks(range(len(columns)), columns, rotation=90, **as_it_is)
            panel.set_xlabel(column_name, fontsize=7)
            panel.set_yticks(range(len(rows)), rows if head == 0 else [], **as_it_is)
            panel.set_ylabel(row_name if head == 0 else "", fontsize=7)
            panel.set_title(f"{name}, head {head}" if len(heads) > 1 else name, fontsize=8)
    bar = figure.colorbar(image, ax=axes, shrink=0.5)
    bar.set_label("weight, or share of the influence", fontsize=7)
    bar.ax.tick_params(labelsize=6)
    printable = (c if c.isprintable() or c == "\n" else "\ufffd" for c in title)
    figure.suptitle("".join(printable), fontsize=8, parse_math=False)
    return save(figure, epath.Path(path))


def new_figure(width: float, height: float, *grid: int, **options: Any) -> tuple[Any, Any]:
    """An empty figure, in inches, and its axes. It is made without pyplot and its global state.

    Args:
        grid: rows and columns of the axes; none: one, which is not in an array.
        options: of `Figure.subplots`.
    """
    from matplotlib.figure import Figure

    figure = Figure(figsize=(width, height), layout="constrained")
    return figure, figure.subplots(*grid, **options)


def save(figure: Any, path: epath.Path) -> epath.Path:
    """Writes a PNG, whole or not at all, and returns its path."""
    path.parent.mkdir(parents=True, exist_ok=True)
    picture = io.BytesIO()
    figure.savefig(picture, format="png", dpi=130)
    write_whole(path, picture.getvalue())
    return path
