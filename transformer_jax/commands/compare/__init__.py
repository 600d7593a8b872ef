r"""Trains models that differ in one thing, with several seeds; a table and two plots.

    transformer-jax compare --config=quickstart --output=runs/mixers --seeds=3 \
        --vary=model.decoder.mixers=full,mamba,ssd

Each value of --vary is a row, and the first row is what the others are compared with. Several keys
that get the same value are joined by commas, and a value with commas in it is in [ ]:
--vary='model.encoder.mixers,model.decoder.mixers=full,[mamba,full]'. A second --vary adds rows.
model.d_ff of each row is chosen so that it has as many parameters as the first one (within 5 %).

--output gets table.md, rows.json, scores.png and cost.png, and a run folder for each row and seed.
The same command continues what was stopped. Several processes may share the work:
--part=1/2 in one, --part=2/2 in the other.
"""

import argparse
import logging
import re

from transformer_jax.commands.flags import Parser
from transformer_jax.commands.main import STOPPED
from transformer_jax.commands.recipe_flags import USUAL, recipe_of
from transformer_jax.config import Config
from transformer_jax.errors import UserError
from transformer_jax.paths import as_path, write_whole

_LOGGER = logging.getLogger(__name__)


def add_arguments(parser: Parser) -> None:
    """Adds the flags of `transformer-jax compare`."""
    add = parser.add_argument
    add("--config", required=True, metavar="RECIPE", help="a recipe, by name or as a file")
    add("--vary", action="append", required=True, metavar="KEY=A,B", help="the rows")
    add("--output", required=True, metavar="DIR", help="for the table, the plots and the runs")
    add("--seeds", type=int, default=1, metavar="N", help="trainings of each row (default: 1)")
    add("--unequal", action="store_true", help="keep model.d_ff, so that parameters may differ")
    add("--part", default="1/1", metavar="I/N", help="train only every N-th row, from the I-th on")
    add("--no_progress", action="store_true", help="no progress bars")
    parser.add_config(Config, prefix="config.", usual=USUAL)


def run(args: argparse.Namespace) -> int:
    """Trains and scores what is missing, and writes table and plots of what is there."""
    import jax

    from transformer_jax.commands.compare.plots import plot_cost, plot_scores
    from transformer_jax.commands.compare.results import Result, Summary, run_row, table, to_json
    from transformer_jax.commands.compare.rows import make_rows, split_vary
    from transformer_jax.commands.signals import StopOnSignals
    from transformer_jax.runs.start import for_its_text

    part, parts = _part(args.part)
    if args.seeds < 1:
        raise UserError(f"--seeds={args.seeds}: must be at least 1")
    config = for_its_text(*recipe_of(args), jax.devices())
    varied = [changes for text in args.vary for changes in split_vary(text)]
    rows = make_rows(config, varied, equal_parameters=not args.unequal)
    for row in rows:
        _LOGGER.info(f"{row.name}: {row.parameters:,} parameters, d_ff {row.config.model.d_ff}")
    output, stop = as_path(args.output), StopOnSignals()
    results: dict[str, list[Result]] = {row.folder: [] for row in rows}
    first_seed = config.train.seed
    trainings = [(row, first_seed + i) for i in range(args.seeds) for row in rows]
    for number, (row, seed) in enumerate(trainings):
        folder = output / row.folder / f"seed_{seed}"
        if number % parts != part and not (folder / "comparison.json").exists():
            continue
        _LOGGER.info(f"training {number + 1} of {len(trainings)}: {row.name}, seed {seed}")
        result = run_row(row, seed, folder, should_stop=stop, progress=not args.no_progress)
        if result is None:
            _LOGGER.info("stopped and saved; the same command continues")
            return STOPPED
        results[row.folder].append(result)
        done = [Summary(row, results[row.folder]) for row in rows if results[row.folder]]
        if results[rows[0].folder]:
            write_whole(output / "table.md", table(done).encode())
            write_whole(output / "rows.json", to_json(done).encode())
            plot_scores(done, output / "scores.png")
            plot_cost(done, output / "cost.png")
    print((output / "table.md").read_text() if (output / "table.md").exists() else "", end="")
    return 0


def _part(text: str) -> tuple[int, int]:
    match = re.fullmatch(r"(\d+)/(\d+)", text)
    if not match or not 1 <= int(match[1]) <= int(match[2]):
        raise UserError(f"--part={text}: expected I/N, such as 1/2 and 2/2")
    return int(match[1]) - 1, int(match[2])
