"""Translates standard input: one line in, one line out, in order; empty lines stay empty.

    transformer-jax translate --workdir=runs/quickstart < in.en > out.de

With --n_best=N, each input line gives up to N output lines, best first, of the form
`line number <TAB> score <TAB> log-probability <TAB> translation`.
"""

import argparse
import sys

from transformer_jax.cli.flags import Parser
from transformer_jax.cli.lines import answer, stdin_lines
from transformer_jax.cli.run_flags import add_run_arguments, chosen_run
from transformer_jax.errors import UserError

#: Lines are read in chunks of this many batches, so that they can be sorted by length.
_BATCHES_PER_CHUNK = 32


def add_arguments(parser: Parser) -> None:
    """Adds the flags of `transformer-jax translate`."""
    add_run_arguments(parser)
    add = parser.add_argument
    add("--n_best", type=int, default=0, metavar="N", help="print N translations with scores")


def run(args: argparse.Namespace) -> int:
    """Translates standard input to standard output."""
    if args.n_best < 0:
        raise UserError(f"--n_best={args.n_best}: must be at least 1")
    run, overrides = chosen_run(args)
    translator = run.translator(args.checkpoint, **overrides)
    method = translator.decode_config.method.with_hypotheses(max(1, args.n_best))
    alone = sys.stdin.isatty()  # answer each line before the next one is typed
    batch_size = 1 if alone else translator.decode_config.batch_size

    def reply(lines: list[str], done: int) -> tuple[list[str], int]:
        decoded = translator.decode(lines, first_id=done, method=method, batch_size=batch_size)
        if not args.n_best:
            return [best.text for best, *_ in decoded.translations], decoded.num_cut
        rows = [
            f"{number}\t{each.score:.6f}\t{each.log_prob:.6f}\t" + each.text.replace("\t", " ")
            for number, translations in enumerate(decoded.translations, start=done + 1)
            for each in translations[: args.n_best]
        ]
        return rows, decoded.num_cut

    answer(stdin_lines(), 1 if alone else _BATCHES_PER_CHUNK * batch_size, reply)
    return 0
