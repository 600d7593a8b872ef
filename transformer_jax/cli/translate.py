"""Translates standard input: one line in, one line out, in order; empty lines stay empty.

    transformer-jax translate --workdir=runs/quickstart < in.de > out.en

With --n_best=N, each output line is `line number <TAB> score <TAB> log-probability <TAB>
translation`, N lines for each input line (fewer where fewer exist), best first.
"""

import argparse
import sys

from transformer_jax.cli.decode_flags import (
    add_decode_arguments,
    add_run_arguments,
    decode_overrides,
)
from transformer_jax.cli.lines import chunks, stdin_lines, write_lines
from transformer_jax.errors import UserError

#: Lines read before the first are translated: enough to sort them into full batches.
_BATCHES_PER_CHUNK = 32


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the flags of `transformer-jax translate`."""
    add_run_arguments(parser)
    parser.add_argument(
        "--n_best", type=int, default=0, metavar="N", help="print N translations with scores"
    )
    add_decode_arguments(parser)


def run(args: argparse.Namespace) -> int:
    """Translates standard input to standard output."""
    from transformer_jax.translation.translator import load, widened

    if args.n_best < 0:
        raise UserError(f"--n_best={args.n_best}: must be at least 1")
    translator = load(args.workdir, args.checkpoint, **decode_overrides(args))
    config = translator.decode_config
    if args.n_best > 1 and config.method == "greedy":
        raise UserError(f"--n_best={args.n_best}: greedy decoding finds one; use --method=beam")
    overrides = widened(config, args.n_best)
    # Somebody who types wants each answer before the next question.
    typing = sys.stdin.isatty()
    size = 1 if typing else _BATCHES_PER_CHUNK * config.batch_size
    if typing:
        overrides["batch_size"] = 1
    done = num_cut = 0
    for chunk in chunks(stdin_lines(), size):
        decoded = translator.decode(chunk, first_id=done, **overrides)
        if args.n_best:
            write_lines(
                [
                    f"{number}\t{found.score:.6f}\t{found.log_prob:.6f}\t"
                    + found.text.replace("\t", " ")
                    for number, translations in enumerate(decoded.translations, start=done + 1)
                    for found in translations[: args.n_best]
                ]
            )
        else:
            write_lines([translations[0].text for translations in decoded.translations])
        done += len(chunk)
        num_cut += decoded.num_cut
    if num_cut:
        print(
            f"note: {num_cut} of {done} lines were longer than the limit and were cut",
            file=sys.stderr,
        )
    return 0
