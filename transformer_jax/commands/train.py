r"""Trains a model from a recipe; the same command again continues a run that was stopped.

    transformer-jax train --config=quickstart --workdir=runs/quickstart
    transformer-jax train --config=from_files --workdir=runs/mine \
        --config.data.source.train_source=train.en --config.data.source.train_target=train.de

--config names a recipe (`transformer-jax recipes` lists them) or a Python file that defines
`config = Config(...)`. Each key of the recipe has a flag, which also comes before what the recipe
chooses by the size of the text. A mixer, an optimizer or another choice is written as its kind
with options, 'cosine(learning_rate=1e-3)', and each of its options has a flag too:
--config.train.schedule.learning_rate=1e-3.

Ctrl-C and SIGTERM save and stop. For several processes, run the same command in each, with
--distributed on a cluster that JAX can detect (TPU, SLURM, Kubernetes, Open MPI), or with
--coordinator_address=HOST:PORT --num_processes=N --process_id=I.

With --plan nothing is trained or written; the text is only read to count its pairs, by a recipe
that depends on them. The training step and the decoding are compiled for this machine, or for
devices that need not exist here (a TPU slice: --plan_topology=v5e:2x4; GPUs:
--plan_topology=h100:8); their memory and time are printed. The exit status is 3 if they do not
fit.
"""

import argparse
import logging
import os

from transformer_jax.commands.flags import Parser
from transformer_jax.commands.main import Stopped
from transformer_jax.commands.recipe_flags import recipe_of
from transformer_jax.commands.run_flags import add_process_arguments, start_processes
from transformer_jax.config import Config
from transformer_jax.errors import UserError
from transformer_jax.paths import as_path
from transformer_jax.settings.keys import keys_of

_LOGGER = logging.getLogger(__name__)

#: Exit status of a plan that does not fit.
DOES_NOT_FIT = 3


def add_arguments(parser: Parser) -> None:
    """Adds the flags of `transformer-jax train`."""
    add = parser.add_argument
    add("--config", required=True, metavar="RECIPE", help="a recipe, by name or as a file")
    add("--workdir", metavar="DIR", type=as_path, help="the run folder")
    add("--no_progress", action="store_true", help="no progress bars")
    add("--profile", type=int, default=0, metavar="N", help="trace N steps into DIR/profile")
    costs = "only print the memory and time of training"
    add("--plan", dest="run", action="store_const", const=plan, help=costs)
    add("--plan_topology", metavar="NAME", help="of a TPU slice (v5e:4x4) or of GPUs (h100:8)")
    of_each = "pieces of each sentence (batch.max_length)"
    add("--plan_length", type="count", metavar="L", help=of_each)
    add("--plan_no_search", action="store_true", help="do not search for the largest batch")
    add_process_arguments(parser)
    parser.add_config(Config, prefix="config.", usual=keys_of(Config))


def run(args: argparse.Namespace) -> None:
    """Loads the recipe, applies the flags, and trains."""
    config, by_pairs = recipe_of(args)
    for flag in ("plan_topology", "plan_length", "plan_no_search"):
        if getattr(args, flag):
            raise UserError(f"--{flag} needs --plan: give both, or neither")
    if args.workdir is None:
        raise UserError("--workdir is missing: name a folder for the run")
    if args.profile and "://" in os.fspath(args.workdir):
        raise UserError(
            f"--profile={args.profile}: a trace is written to a folder of this machine, and "
            f"--workdir={args.workdir} is none: train some steps in another folder"
        )
    start_processes(args)
    from transformer_jax.commands.signals import StopOnSignals
    from transformer_jax.parallel.processes import gather
    from transformer_jax.plan.topologies import this_machine
    from transformer_jax.training.train import train

    here, stop = this_machine(), StopOnSignals()
    trained = train(
        config,
        args.workdir,
        by_pairs=by_pairs,
        should_stop=stop,
        progress=not args.no_progress,
        peak=here.device.flops * len(here.devices) if here.device else None,
        profile=args.profile,
    )
    if stop.stopped:
        raise Stopped
    workdir = f"--workdir={trained.path}"
    _LOGGER.info(
        f"trained; score it with: transformer-jax eval {workdir}; see what it does with: "
        f"transformer-jax inspect {workdir}"
    )
    gather([])  # all processes end together


def plan(args: argparse.Namespace) -> int:
    """With --plan: loads the recipe, applies the flags, and prints what its training takes."""
    from transformer_jax.plan.planner import make_plan
    from transformer_jax.plan.text import as_text
    from transformer_jax.plan.topologies import described, this_machine

    config, by_pairs = recipe_of(args)
    target = described(args.plan_topology) if args.plan_topology else this_machine()
    made = make_plan(
        config,
        target,
        by_pairs=by_pairs,
        length=args.plan_length,
        largest_batch=not args.plan_no_search,
    )
    print(as_text(made))
    return 0 if made.fits else DOES_NOT_FIT
