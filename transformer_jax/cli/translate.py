"""Translates standard input: one line in, one line out, in order; empty lines stay empty.

    transformer-jax translate --workdir=runs/quickstart < in.en > out.de

With --n_best=N, each input line gives up to N output lines, best first, of the form
`line number <TAB> score <TAB> log-probability <TAB> translation`.
"""

import argparse
import sys
from typing import Any

from transformer_jax.cli.flags import Parser
from transformer_jax.cli.lines import chunks, note_cut, stdin_lines, write_lines
from transformer_jax.cli.run_flags import DECODING, add_run_arguments, decode_overrides
from transformer_jax.decoding.config import DecodeConfig
from transformer_jax.errors import UserError

#: Lines are read in chunks of this many batches, so that they can be sorted by length.
_BATCHES_PER_CHUNK = 32


def add_arguments(parser: Parser) -> None:
    """Adds the flags of `transformer-jax translate`."""
    add_run_arguments(parser)
    parser.add_argument(
        "--n_best", type=int, default=0, metavar="N", help="print N translations with scores"
    )
    parser.add_config(DecodeConfig, title=DECODING)


def run(args: argparse.Namespace) -> int:
    """Translates standard input to standard output."""
    from transformer_jax.runs.folder import open_run

    if args.n_best < 0:
        raise UserError(f"--n_best={args.n_best}: must be at least 1")
    run = open_run(args.workdir)
    translator = run.translator(args.checkpoint, **decode_overrides(run, args.flags))
    config = translator.decode_config
    overrides: dict[str, Any] = {"method": config.method.with_hypotheses(max(1, args.n_best))}
    size = _BATCHES_PER_CHUNK * config.batch_size
    if sys.stdin.isatty():  # answer each line before the next one is typed
        size = overrides["batch_size"] = 1
    done = num_cut = 0
    for chunk in chunks(stdin_lines(), size):
        decoded = translator.decode(chunk, first_id=done, **overrides)
        if args.n_best:
            write_lines(
                [
                    f"{number}\t{each.score:.6f}\t{each.log_prob:.6f}\t"
                    + each.text.replace("\t", " ")
                    for number, translations in enumerate(decoded.translations, start=done + 1)
                    for each in translations[: args.n_best]
                ]
            )
        else:
            write_lines([translations[0].text for translations in decoded.translations])
        done += len(chunk)
        num_cut += decoded.num_cut
    note_cut(num_cut, f"{done} lines")
    return 0
