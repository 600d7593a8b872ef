r"""Trains models that differ in one thing, with several seeds; tables and plots.

    transformer-jax compare --config=quickstart --output=runs/mixers --seeds=3 \
        --vary=model.decoder.mixers=full,mamba,ssd \
        --grid=train.schedule.learning_rate=3e-3,6e-3,1.2e-2

Each value of --vary is a row, and the first row is what the others are compared with. Several keys
that get the same value are joined by commas, and a value with commas in it is in [ ]:
--vary='model.encoder.mixers,model.decoder.mixers=full,[mamba,full]'. A second --vary adds rows.
model.d_ff of each row is chosen so that it has as many parameters as the first one (within 5 %).

Each row is trained at every value of --grid with the first seed. The value with the best BLEU on
the validation set is the row's, and the other seeds are trained with it. A second --grid
multiplies the values.

--output gets table.md, table.csv, table.tex, rows.json, curves.csv, scores.png, cost.png and
curves.png, and a run folder for each training. Each training is a process, --jobs=N of them at a
time. The same command continues what was stopped or killed. Several machines may share the work:
--part=1/2 on one, --part=2/2 on the other.
"""

import argparse
import json
import logging
import subprocess
import sys
from multiprocessing import get_context
from typing import TYPE_CHECKING

from transformer_jax.commands.flags import Parser, part_of
from transformer_jax.commands.main import Stopped, main
from transformer_jax.commands.recipe_flags import recipe_of
from transformer_jax.config import Config, override
from transformer_jax.errors import UserError
from transformer_jax.paths import as_path
from transformer_jax.recipes import Recipe
from transformer_jax.settings.keys import keys_of

if TYPE_CHECKING:
    from multiprocessing.process import BaseProcess

    from transformer_jax.commands.compare.rows import Row

_LOGGER = logging.getLogger(__name__)


def add_arguments(parser: Parser) -> None:
    """Adds the flags of `transformer-jax compare`."""
    add = parser.add_argument
    add("--config", required=True, metavar="RECIPE", help="a recipe, by name or as a file")
    add("--vary", action="append", required=True, metavar="KEY=A,B", help="the rows")
    tried = "values that each row is tried with; the best by validation is the row's"
    add("--grid", action="append", default=[], metavar="KEY=A,B", help=tried)
    add("--output", required=True, metavar="DIR", help="for the tables, the plots and the runs")
    add("--seeds", type="count", default=1, metavar="N", help="trainings of each row (default: 1)")
    add("--unequal", action="store_true", help="keep model.d_ff, so that parameters may differ")
    add("--jobs", type="count", default=1, metavar="N", help="trainings at a time (default: 1)")
    add("--part", default="1/1", metavar="I/N", help="train only every N-th row, from the I-th on")
    add("--no_progress", action="store_true", help="no progress bars")
    add("--training", type=json.loads, help=argparse.SUPPRESS)  # what a process is to do
    parser.add_config(Config, prefix="config.", usual=keys_of(Config))


def run(args: argparse.Namespace) -> None:
    """Trains and scores what is missing, and writes tables and plots of what is there."""
    if args.training:
        _run_training(args, **args.training)
        return
    import jax

    jax.config.update("jax_platforms", "cpu")  # the devices are the trainings'
    from transformer_jax.commands.compare.comparison import Comparison
    from transformer_jax.commands.compare.jobs import run_jobs
    from transformer_jax.commands.compare.rows import make_grid, split_grid, split_vary
    from transformer_jax.commands.signals import StopOnSignals
    from transformer_jax.data.splits import has_split
    from transformer_jax.runs.start import for_its_text

    part, parts = part_of("part", args.part, first=1)
    recipe = recipe_of(args)
    config = for_its_text(*recipe, jax.devices() if _trains_on_cpu(recipe) else [])
    varied = [changes for text in args.vary for changes in split_vary(text)]
    rows = make_grid(config, varied, split_grid(args.grid), equal_parameters=not args.unequal)
    if args.grid and not has_split(config.data, "validation"):
        raise UserError(f"--grid={args.grid[0]}: there is no validation set to choose by")
    for row, *_ in rows:
        _LOGGER.info(f"{row.name}: {row.parameters:,} parameters, d_ff {row.config.model.d_ff}")
    comparison = Comparison(rows, args.seeds, as_path(args.output))

    def process_of(training: tuple["Row", int]) -> "BaseProcess":
        row, number = training
        folder = comparison.folder(row, number)
        _LOGGER.info(f"training {folder.relative_to(comparison.output)}")
        task = {"changes": dict(row.changes), "number": number, "folder": str(folder)}
        words = ["compare", *args.words, f"--training={json.dumps(task)}"]
        words += ["--no_progress"] if args.jobs > 1 else []
        return _process(words)

    failed = run_jobs(
        lambda: comparison.missing(rows[part::parts]),
        process_of,
        comparison.write,
        args.jobs,
        StopOnSignals(),
    )
    comparison.write()
    if failed is None:
        raise Stopped
    table = comparison.output / "table.md"
    print(table.read_text() if table.exists() else "", end="")
    if failed:
        names = ", ".join(str(comparison.folder(*training)) for training in failed)
        raise UserError(f"these trainings failed, and the same command tries them again: {names}")


def _process(words: list[str]) -> "BaseProcess":
    return get_context("spawn").Process(target=_in_process, args=(words,))


def _in_process(words: list[str]) -> None:
    from transformer_jax.commands.signals import end_with_command

    end_with_command()
    sys.exit(main(words))


def _run_training(
    args: argparse.Namespace, changes: dict[str, str], number: int, folder: str
) -> None:
    import jax

    from transformer_jax.commands.compare.results import run_training, with_seed
    from transformer_jax.commands.signals import StopOnSignals
    from transformer_jax.runs.start import for_its_text

    config = override(for_its_text(*recipe_of(args), jax.devices()), changes)
    result = run_training(
        with_seed(config, number),
        as_path(folder),
        validate=bool(args.grid),
        should_stop=StopOnSignals(),
        progress=not args.no_progress,
    )
    if result is None:
        raise Stopped


def _trains_on_cpu(recipe: Recipe) -> bool:
    """Whether the trainings' device is a CPU, if that decides on a setting.

    Another process looks: some devices serve one process at a time.
    """
    if recipe.by_pairs is None or recipe.by_pairs.on_cpu is None:
        return False
    look = [sys.executable, "-c", "import jax; print(jax.default_backend())"]
    return subprocess.run(look, stdout=subprocess.PIPE, text=True).stdout.strip() == "cpu"
