"""Draws validation BLEU against the minutes of training, of one or more runs.

    transformer-jax plot --workdir=runs/small --workdir=runs/large --output=bleu.png

Minutes count from the start of a run, with tokenizer, compilation and evaluations. A training in
progress can be drawn too.
"""

import argparse

from transformer_jax.commands.flags import Parser
from transformer_jax.commands.run_flags import png_path


def add_arguments(parser: Parser) -> None:
    """Adds the flags of `transformer-jax plot`."""
    add = parser.add_argument
    several = "a run folder; each one is a curve"
    add("--workdir", required=True, action="append", metavar="DIR", help=several)
    add("--output", default="bleu.png", type=png_path, metavar="FILE", help="PNG (%(default)s)")


def run(args: argparse.Namespace) -> None:
    """Draws the picture and prints its path."""
    from transformer_jax.runs.folder import open_run
    from transformer_jax.viewing.plots import plot_bleu

    print(plot_bleu([open_run(workdir) for workdir in args.workdir], args.output))
