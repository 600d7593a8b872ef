"""Translates standard input: one line in, one line out, in order; empty lines stay empty.

    transformer-jax translate --workdir=runs/quickstart < in.en > out.de
    transformer-jax translate --workdir=runs/quickstart --input=large.en --output=large.de

With --input and --output, the same command continues a file that was not finished.

With --n_best=N, each input line gives up to N output lines, best first, of the form
`line number <TAB> score <TAB> log-probability <TAB> translation`.

Standard error names the words that the model has never seen in training, of the first lines that
have such words.
"""

import argparse
import os
import string
import sys
from itertools import islice

from transformer_jax.cli.flags import Parser
from transformer_jax.cli.lines import Output, answer, stdin_lines
from transformer_jax.cli.run_flags import add_run_arguments, chosen_run
from transformer_jax.errors import UserError

#: Lines are read in chunks of this many batches, so that they can be sorted by length.
_BATCHES_PER_CHUNK = 32
#: Lines whose words that the model has never seen are named.
_NAMED_LINES = 20


def add_arguments(parser: Parser) -> None:
    """Adds the flags of `transformer-jax translate`."""
    add_run_arguments(parser)
    add = parser.add_argument
    add("--input", metavar="FILE", help="translate this text (.gz too) instead; needs --output")
    add("--output", metavar="FILE", help="write here instead; must not exist; needs --input")
    add("--n_best", type=int, default=0, metavar="N", help="print N translations with scores")


def run(args: argparse.Namespace) -> int:
    """Translates standard input to standard output, or a file to a file."""
    from transformer_jax.cli.output_file import output_file
    from transformer_jax.config import to_dict
    from transformer_jax.data.sources.files import file_digest, read_lines

    if args.n_best < 0:
        raise UserError(f"--n_best={args.n_best}: must be at least 1")
    run, overrides = chosen_run(args)
    if (args.input is None) != (args.output is None):
        raise UserError("--input and --output belong together: give both or neither")
    translator = run.translator(args.checkpoint, **overrides)
    count = max(1, args.n_best)
    translator.decode_config.method.with_hypotheses(count)  # an error before the input is read
    alone = args.input is None and sys.stdin.isatty()  # answer each line before the next is typed
    batch_size = 1 if alone else translator.decode_config.batch_size
    chunk_size = 1 if alone else _BATCHES_PER_CHUNK * batch_size

    named = 0

    def name_unseen(lines: list[str], done: int) -> None:
        nonlocal named
        for number, line in enumerate(lines, start=done + 1):
            if named < _NAMED_LINES and (words := translator.unseen_words(line)):
                named += 1
                listed = ", ".join(word.strip(string.punctuation) or word for word in words)
                print(f"note: line {number}: never seen in training: {listed}", file=sys.stderr)
                if named == _NAMED_LINES:
                    print("note: such words of further lines are not named", file=sys.stderr)

    def reply(lines: list[str], done: int) -> tuple[list[str], int]:
        name_unseen(lines, done)
        options = {"num_best": count, "first_id": done, "batch_size": batch_size}
        decoded = translator.decode(lines, **options)
        if not args.n_best:
            return [best.text for best, *_ in decoded.translations], decoded.num_cut
        rows = [
            f"{number}\t{each.score:.6f}\t{each.log_prob:.6f}\t" + each.text.replace("\t", " ")
            for number, translations in enumerate(decoded.translations, start=done + 1)
            for each in translations
        ]
        return rows, decoded.num_cut

    if args.output is None:
        answer(Output(sys.stdout.buffer), stdin_lines(), chunk_size, reply)
        return 0
    selection = run.select(args.checkpoint)
    command = {
        "checkpoint": [os.fspath(run.path), selection.name, args.workdir],
        "decode": to_dict(translator.decode_config),
        "mean": args.ensemble_mean,
        "n_best": args.n_best,
        "input": file_digest(args.input),
    }
    total = sum(1 for _ in read_lines(args.input))
    with output_file(args.output, command) as output:
        rest = islice(read_lines(args.input), output.done, None)
        answer(output, rest, chunk_size, reply, total)
    return 0
