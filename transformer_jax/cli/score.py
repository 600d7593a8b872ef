"""Log-probability of given translations: log p(target | source) in nats, one a line.

    transformer-jax score --workdir=DIR --source=in.en --target=out.de
    paste in.en out.de | transformer-jax score --workdir=DIR

Without files, standard input has lines `source <TAB> target`.
"""

import argparse
import sys

from transformer_jax.cli.flags import Parser
from transformer_jax.cli.lines import Output, answer, file_pairs, stdin_lines
from transformer_jax.cli.run_flags import add_run_arguments, chosen_run

_CHUNK_LINES = 1024


def add_arguments(parser: Parser) -> None:
    """Adds the flags of `transformer-jax score`."""
    add_run_arguments(parser, only=["batch_size", "target_prefix", "weights"])
    add = parser.add_argument
    add("--source", metavar="FILE", help="source sentences, one a line")
    add("--target", metavar="FILE", help="their translations, one a line")
    add("--per_token", action="store_true", help="divide by the number of target pieces and EOS")


def run(args: argparse.Namespace) -> int:
    """Writes a log-probability for each pair."""
    from transformer_jax.data.sources.files import split_tabs

    pairs = split_tabs(stdin_lines(), "standard input")
    chunk_size = 1 if sys.stdin.isatty() else _CHUNK_LINES
    if args.source or args.target:
        pairs = iter(file_pairs(source=args.source, target=args.target))
        chunk_size = _CHUNK_LINES
    run, overrides = chosen_run(args)
    translator = run.translator(args.checkpoint, **overrides)

    def reply(pairs: list[tuple[str, str]], done: int) -> tuple[list[str], int]:
        del done
        scored = translator.score_pairs(*zip(*pairs, strict=True))
        values = scored.log_probs / scored.num_tokens if args.per_token else scored.log_probs
        return [f"{value:.6f}" for value in values], scored.num_cut

    answer(Output(sys.stdout.buffer), pairs, chunk_size, reply)
    return 0
