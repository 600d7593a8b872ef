"""Shows translations and pictures of a run, or draws the attention in one sentence pair.

    transformer-jax inspect --workdir=DIR
    transformer-jax inspect --workdir=DIR --output=heat.png "My picture costs forty-five euros."

Without a sentence, a few validation sentences are translated, and two pictures are drawn in
DIR/plots: the loss by the step, and the cross-attention of the sentence whose order changes most.

With one, the picture shows where every layer and head attends: encoder, decoder, cross. Without a
target, the model's own translation is shown. A layer whose mixer has no attention weights shows its
effective attention (see transformer_jax.viewing.attention) in one panel; with --effective, every
layer does.
"""

import argparse

from transformer_jax.commands.flags import Parser
from transformer_jax.commands.run_flags import add_run_arguments, png_path
from transformer_jax.errors import UserError


def add_arguments(parser: Parser) -> None:
    """Adds the flags of `transformer-jax inspect`."""
    add_run_arguments(parser, decode=False)
    add = parser.add_argument
    add("source", nargs="?", help="a source sentence")
    add("target", nargs="?", help="its translation (default: the model's own)")
    add("--output", type=png_path, metavar="FILE", help="PNG to write (default: heat.png)")
    add("--effective", action="store_true", help="effective attention of every layer")


def run(args: argparse.Namespace) -> None:
    """Draws the pictures and prints their paths."""
    from transformer_jax.runs.folder import open_run
    from transformer_jax.viewing.attention import draw_attention
    from transformer_jax.viewing.samples import report

    run = open_run(args.workdir)
    translator = run.translator(args.checkpoint)
    if args.source is None:
        for flag in ("output", "effective"):
            if getattr(args, flag):
                raise UserError(f"--{flag} is of one sentence: give it, or leave --{flag} out")
        texts = list(report(run, translator))
        if not texts:
            raise UserError(f"{args.workdir} has no metrics and no validation set: give a sentence")
        print(*texts, sep="\n")
    else:
        output = args.output or "heat.png"
        effective = args.effective
        print(draw_attention(translator, args.source, args.target, output, effective=effective))
