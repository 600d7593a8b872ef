"""Translates a test set with a trained model and scores the result with sacreBLEU.

    transformer-jax eval --workdir=runs/quickstart
    transformer-jax eval --workdir=DIR --split=validation --direction=en-fr
    transformer-jax eval --workdir=DIR --source=in.en --reference=in.de --checkpoint=average:5
    transformer-jax eval --workdir=DIR --split=validation --baseline=DIR_BEFORE
    transformer-jax eval --workdir=DIR --metric=metricx --metric_model=metricx-24-hybrid-large

Writes `translations/<set>.<checkpoint>.txt` into the run folder, and the scores of exactly
those translations into `scores.json`, under the key `<set>.<checkpoint>`. A model of several
directions is scored in all of them that have the set, or in one, which need not be among those
that were trained. A baseline that is a run folder translates the same sets, and of several
directions a table says what changed.
"""

import argparse
import contextlib
import json
import os
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from transformer_jax.commands.flags import Parser
from transformer_jax.commands.lines import file_pairs
from transformer_jax.commands.run_flags import (
    add_process_arguments,
    add_run_arguments,
    chosen_run,
    start_processes,
)
from transformer_jax.errors import UserError, as_user_error

if TYPE_CHECKING:
    from transformer_jax.data.sources.base import Languages, Split
    from transformer_jax.metrics.base import Metric
    from transformer_jax.runs.evaluation import Report
    from transformer_jax.runs.folder import Run


def add_arguments(parser: Parser) -> None:
    """Adds the flags of `transformer-jax eval`."""
    add_run_arguments(parser)
    add = parser.add_argument
    one = parser.add_mutually_exclusive_group().add_argument
    one("--split", choices=("test", "validation"), help="of the run's corpus (default: test)")
    add("--direction", metavar="A-B", help="from A into B (default: all that are trained)")
    one("--source", metavar="FILE", help="score this text instead of a split")
    add("--reference", metavar="FILE", help="the reference translation of --source")
    other = "other translations, or a run that makes them, compared by paired bootstrap"
    add("--baseline", metavar="FILE|DIR", help=other)
    add("--documents", action="store_true", help="translate and score documents: blocks as input")
    more: Any = {"action": "append_const", "dest": "metrics", "default": []}
    add("--ter", const="ter", help="also report TER", **more)
    add("--lowercase", const="bleu_lc", help="also report BLEU in lower case", **more)
    add("--metric", metavar="NAME", help="also report a learned metric: metricx, comet, ...")
    add("--metric_model", metavar="FOLDER", help="its downloaded model")
    add("--json", action="store_true", help="print one JSON object on standard output, alone")
    add_process_arguments(parser)


def run(args: argparse.Namespace) -> None:
    """Evaluates and prints the report; of several processes the first one prints it."""
    with _all_output_on_standard_error():
        start_processes(args)
        from transformer_jax.data.sources.files import read_lines
        from transformer_jax.data.splits import read_pairs
        from transformer_jax.parallel.processes import gather
        from transformer_jax.runs.evaluation import evaluate, translate_set

        run, overrides = chosen_run(args)
        metrics = [*args.metrics, *_learned(args.metric, args.metric_model)]
        pairs: Any = args.split or "test"
        if from_files := args.source is not None or args.reference is not None:
            if args.reference is None and metrics != args.metrics:
                pairs = [(line, None) for line in read_lines(args.source)]
            else:
                pairs = file_pairs(source=args.source, reference=args.reference)
        name = _name_of(args.source) if from_files else pairs
        other = _run_of(args)
        reports: list[Report] = []
        directions = _directions(args.direction, run, None if from_files else pairs)
        if args.baseline is not None and other is None and len(directions) > 1:
            raise UserError(
                f"--baseline={args.baseline}: a file has the translations of one direction, and "
                f"there are {len(directions)}: name one by --direction, or give a run folder"
            )
        for direction in directions:
            options = {"direction": direction, "name": name, "documents": args.documents}
            baseline = None
            if other is not None:
                asked = pairs if from_files else read_pairs(run.config.data, pairs, direction)
                sources = [source for source, _ in asked]
                baseline = translate_set(other, sources, direction, **overrides)
            elif args.baseline is not None:
                baseline = list(read_lines(args.baseline))
            options |= {"checkpoint": args.checkpoint, "metrics": metrics, "baseline": baseline}
            report = evaluate(run, pairs, **options, **overrides)
            reports += [report] if report else []
        gather([])  # all processes end together
    for report in reports:
        print(json.dumps(report.to_json()) if args.json else report, flush=True)
    if other is not None and len(reports) > 1 and not args.json:
        print(_table(reports), flush=True)


def _name_of(file: str) -> str:
    """The name of a set that was read from a file: its own, but for names that splits have."""
    name = Path(file).name
    of_split = r"(test|validation)(\.documents)?(\.[^.]+-[^.]+)?"
    return f"file-{name}" if re.fullmatch(of_split, name) else name


def _run_of(args: argparse.Namespace) -> "Run | None":
    """The run that the baseline names; None: it is a file, or there is none.

    Raises:
        UserError: a folder that holds no run.
    """
    from transformer_jax.paths import as_path
    from transformer_jax.runs.folder import open_run

    if args.baseline is None or not as_path(args.baseline).is_dir():
        return None
    if args.documents:
        raise UserError(f"--baseline={args.baseline}: with --documents give a file of translations")
    return open_run(args.baseline)


def _table(reports: "list[Report]") -> str:
    """BLEU of each direction before and after."""
    width = max(9, *(len(report.direction) for report in reports))
    lines = [f"{'direction':<{width}}  {'before':>6}  {'after':>6}  {'change':>6}  p-value"]
    for report in reports:
        assert report.baseline is not None
        bleu = report.baseline["bleu"]
        change = bleu.score - bleu.baseline_score
        lines.append(
            f"{report.direction:<{width}}  {bleu.baseline_score:6.2f}  {bleu.score:6.2f}  "
            f"{change:+6.2f}  {bleu.p_value:.4f}"
        )
    return "\n".join(lines)


def _learned(name: str | None, model: str | None) -> "list[Metric]":
    """The metric that the flags choose.

    Raises:
        UserError: there is no such metric, or one of the flags is missing.
    """
    from transformer_jax.metrics.registry import METRICS
    from transformer_jax.settings.variants import OneOf

    if name is None and model is None:
        return []
    if name is None:
        raise UserError(f"--metric_model={model}: say with --metric which metric it is of")
    options = {"kind": name} | ({} if model is None else {"model": model})
    advice = "; name it with --metric_model=FOLDER" if model is None else ""
    with as_user_error(f"--metric={name}:", ValueError, then=advice):
        return [OneOf(METRICS).parse(options)]


def _directions(flag: str | None, run: "Run", split: "Split | None") -> "list[Languages | None]":
    """The directions to score; None stands for the run's own.

    Raises:
        UserError: the flag does not name two languages.
    """
    from transformer_jax.data.splits import directions_with

    if flag is not None:
        source, _, target = flag.partition("-")
        if not (source and target):
            raise UserError(f"--direction={flag}: expected two languages, such as en-fr")
        return [(source, target)]
    if split is None or not run.config.data.corpora:
        return [None]
    return list(directions_with(run.config.data, split)) or [None]


@contextlib.contextmanager
def _all_output_on_standard_error() -> Iterator[None]:
    """Redirects what libraries print to standard error, so that the output is the report alone.

    C++ libraries are included: Gloo, which connects CPU processes, prints to standard output.
    """
    sys.stdout.flush()
    output = os.dup(1)
    os.dup2(2, 1)
    try:
        with contextlib.redirect_stdout(sys.stderr):
            yield
    finally:
        os.dup2(output, 1)
        os.close(output)
