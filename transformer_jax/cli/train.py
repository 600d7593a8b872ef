r"""Trains a model from a recipe; the same command again continues a run that was stopped.

    transformer-jax train --config=configs/from_files.py --workdir=runs/mine \
        --config.data.train_source=train.en --config.data.train_target=train.de

Any field of the recipe can be set as --config.<part>.<key>=<value>; docs/configuration.md
lists them all. Ctrl-C and SIGTERM save and stop.
"""

import argparse
import re
import signal
from collections.abc import Callable
from types import FrameType

from transformer_jax.errors import UserError

#: Exit status of a run that was told to stop (SIGTERM, Ctrl-C) and saved itself: 128 + 15.
STOPPED = 143


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The flags of `train`; overrides of config keys are taken from what is left."""
    parser.add_argument("--config", required=True, metavar="FILE", help="recipe, a Python file")
    parser.add_argument("--workdir", required=True, metavar="DIR", help="the run folder")
    parser.add_argument("--no_progress", action="store_true", help="no progress bars")


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
    from transformer_jax.training.config import load_recipe, override

    config = override(load_recipe(args.config), parse_overrides(args.overrides))
    from transformer_jax import experiment

    stopped = _stop_on_signals()
    experiment.run(config, args.workdir, should_stop=stopped, progress=not args.no_progress)
    if stopped():
        return STOPPED
    for path in experiment.report(args.workdir):
        print(f"drew {path}")
    print(f"trained; score it with: python eval.py --workdir={args.workdir}")
    return 0


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
