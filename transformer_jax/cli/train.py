r"""Trains a model from a recipe; the same command again continues a run that was stopped.

    transformer-jax train --config=configs/from_files.py --workdir=runs/mine \
        --config.data.source.train_source=train.en --config.data.source.train_target=train.de

Any field of the recipe can be set as --config.<part>.<key>=<value>; docs/configuration.md
lists them all. Ctrl-C and SIGTERM save and stop. Several processes run the same command,
each with --distributed on a cluster that JAX can detect (TPU, SLURM, Kubernetes, Open MPI),
or with --coordinator_address=HOST:PORT --num_processes=N --process_id=I.

With --plan nothing is trained, read or written: the training step and the decoding are compiled
for this machine, or for a TPU slice that need not be there (--plan_topology=v5e:2x4), and what
they need and take is printed. The exit status is 3 where they do not fit.
"""

import argparse
import os
import re
import signal
from collections.abc import Callable
from types import FrameType
from typing import TYPE_CHECKING

from transformer_jax.cli.process_flags import add_process_arguments, start_processes
from transformer_jax.errors import UserError
from transformer_jax.paths import as_path

if TYPE_CHECKING:
    from transformer_jax.config import Config
    from transformer_jax.runs.log import RunLog

#: Exit status of a run that was told to stop (SIGTERM, Ctrl-C) and saved itself: 128 + 15.
STOPPED = 143
#: Exit status of a plan that does not fit.
DOES_NOT_FIT = 3


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The flags of `train`; overrides of config keys are taken from what is left."""
    parser.add_argument("--config", required=True, metavar="FILE", help="recipe, a Python file")
    parser.add_argument("--workdir", metavar="DIR", help="the run folder")
    parser.add_argument("--no_progress", action="store_true", help="no progress bars")
    parser.add_argument(
        "--plan", action="store_true", help="only say what training would need and take"
    )
    parser.add_argument(
        "--plan_topology",
        metavar="SLICE",
        help="for this TPU slice, such as v5e:4x4 (needs libtpu)",
    )
    parser.add_argument(
        "--plan_length",
        type=int,
        default=0,
        metavar="L",
        help="for sentences of this many pieces (batch.max_length, the most memory)",
    )
    parser.add_argument(
        "--plan_no_search", action="store_true", help="do not look for the largest batch"
    )
    add_process_arguments(parser)


OVERRIDE = re.compile(r"--config\.([\w.]+)=(.*)", re.DOTALL)


def parse_overrides(words: list[str]) -> dict[str, str]:
    """`--config.a.b=c` words as {"a.b": "c"}."""
    found = {}
    for word in words:
        match = OVERRIDE.fullmatch(word)
        if not match:
            raise UserError(f"{word}: write --config.<part>.<key>=<value> with an equals sign")
        found[match[1]] = match[2]
    return found


def run(args: argparse.Namespace) -> int:
    """Loads the recipe, applies the overrides and trains."""
    from transformer_jax.config import override
    from transformer_jax.recipes import load_recipe

    config = override(load_recipe(args.config), parse_overrides(args.overrides))
    if args.plan:
        return plan(config, args)
    for flag in ("plan_topology", "plan_length", "plan_no_search"):
        if getattr(args, flag):
            raise UserError(f"--{flag} is for --plan: give both, or neither")
    if args.workdir is None:
        raise UserError("--workdir is missing: where should the run be kept?")
    as_path(args.workdir)  # whether a bucket answers is known before the others are waited for
    start_processes(args)
    from transformer_jax.parallel.processes import gather, is_first, several
    from transformer_jax.runs.log import RunLog
    from transformer_jax.training import run as experiment

    stopped = _StopAgreed() if several() else _stop_on_signals()
    log = RunLog(quiet=not is_first())
    experiment.run(
        config, args.workdir, should_stop=stopped, progress=not args.no_progress, log=log
    )
    if stopped.answer if isinstance(stopped, _StopAgreed) else stopped():
        return STOPPED
    if is_first():
        _report(args.workdir, log)
    gather([])  # they end together
    return 0


def plan(config: "Config", args: argparse.Namespace) -> int:
    """Prints a plan; the status says whether it fits."""
    from transformer_jax.plan.plan import make_plan
    from transformer_jax.plan.report import fits, report
    from transformer_jax.plan.topology import this_machine, tpu_slice

    if args.plan_length < 0:
        raise UserError(f"--plan_length={args.plan_length}: must be at least 1")
    target = tpu_slice(args.plan_topology) if args.plan_topology else this_machine()
    made = make_plan(config, target, length=args.plan_length, largest_batch=not args.plan_no_search)
    print(report(made))
    return 0 if fits(made) else DOES_NOT_FIT


def _report(workdir: str, log: "RunLog") -> None:
    from transformer_jax.viewing.samples import report

    log.open(workdir)

    def tell(text: str) -> None:
        print(text)
        log.keep(text)

    try:
        for path in report(workdir, say=tell):
            tell(f"drew {path}")
        tell(f"trained; score it with: python eval.py --workdir={workdir}")
    finally:
        log.close()


class _StopAgreed:
    """Whether a SIGTERM or Ctrl-C to one of several processes stops them all after this step."""

    def __init__(self) -> None:
        self._calls = 0
        self.answer = False  # the last one given
        signal.signal(signal.SIGINT, self._as_sigterm)

    @staticmethod
    def _as_sigterm(number: int, frame: FrameType | None) -> None:
        del frame
        signal.signal(number, signal.SIG_DFL)  # a second one ends the process at once
        os.kill(os.getpid(), signal.SIGTERM)  # what the processes agree upon knows this one alone

    def __call__(self) -> bool:
        from transformer_jax.parallel.processes import stop_agreed

        self._calls += 1  # as many in every process
        self.answer = stop_agreed(self._calls)
        return self.answer


def _stop_on_signals() -> Callable[[], bool]:
    """Turns SIGTERM (preemption) and Ctrl-C into a request to save and stop after this step."""
    received: list[int] = []

    def handler(number: int, frame: FrameType | None) -> None:
        del frame
        received.append(number)
        signal.signal(number, signal.SIG_DFL)  # a second one ends the process at once

    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, handler)
    return lambda: bool(received)
