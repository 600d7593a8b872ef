"""Draws where every layer and head attends in one sentence pair: encoder, decoder, cross.

    transformer-jax inspect --workdir=DIR --output=heat.png "My picture costs forty-five euros."

Without a target, the model's own translation is shown. A layer whose mixer has no attention
weights shows its effective attention (see transformer_jax.viewing.attention) in one panel; with
--effective, every layer does.
"""

import argparse

from transformer_jax.commands.flags import Parser
from transformer_jax.commands.run_flags import add_run_arguments, png_path


def add_arguments(parser: Parser) -> None:
    """Adds the flags of `transformer-jax inspect`."""
    add_run_arguments(parser, decode=False)
    add = parser.add_argument
    add("source", help="a source sentence")
    add("target", nargs="?", help="its translation (default: the model's own)")
    add("--output", default="heat.png", type=png_path, metavar="FILE", help="PNG to write")
    add("--effective", action="store_true", help="effective attention of every layer")


def run(args: argparse.Namespace) -> int:
    """Draws the picture and prints its path."""
    from transformer_jax.runs.folder import open_run
    from transformer_jax.viewing.attention import draw_attention

    translator = open_run(args.workdir).translator(args.checkpoint)
    print(
        draw_attention(translator, args.source, args.target, args.output, effective=args.effective)
    )
    return 0
