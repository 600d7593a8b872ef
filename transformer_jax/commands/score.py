"""Log-probability of given translations: log p(target | source) in nats, one a line.

    transformer-jax score --workdir=DIR --source=in.en --target=out.de
    paste in.en out.de | transformer-jax score --workdir=DIR

With --alignments, a line says instead which source word each target word comes from, `0-0 1-2`, as
fast_align prints it. Words are what stands between spaces, counted from 0.

Without files, standard input has lines `source <TAB> target`.
"""

import argparse
import sys
from math import isfinite

from transformer_jax.commands.flags import Parser
from transformer_jax.commands.lines import Counts, Output, answer, file_pairs, stdin_lines
from transformer_jax.commands.run_flags import add_run_arguments, chosen_run

_CHUNK_LINES = 1024


def add_arguments(parser: Parser) -> None:
    """Adds the flags of `transformer-jax score`."""
    languages = ["source_language", "target_language"]
    add_run_arguments(parser, only=["batch_size", "target_prefix", *languages, "weights"])
    add = parser.add_argument
    add("--source", metavar="FILE", help="source sentences, one a line")
    add("--target", metavar="FILE", help="their translations, one a line")
    one = parser.add_mutually_exclusive_group().add_argument
    one("--alignments", action="store_true", help="print word alignments, `0-0 1-2`, instead")
    one("--per_token", action="store_true", help="divide by the number of target pieces and EOS")


def run(args: argparse.Namespace) -> int:
    """Writes a log-probability for each pair."""
    from transformer_jax.data.alignments import pharaoh
    from transformer_jax.data.sources.files import split_tabs

    pairs = split_tabs(stdin_lines(), "standard input")
    chunk_size = 1 if sys.stdin.isatty() else _CHUNK_LINES
    if args.source or args.target:
        pairs = iter(file_pairs(source=args.source, target=args.target))
        chunk_size = _CHUNK_LINES
    run, overrides = chosen_run(args)
    translator = run.translator(args.checkpoint, **overrides)
    if args.alignments:
        translator.model.check_alignment()

    def reply(pairs: list[tuple[str, str]], done: int) -> tuple[list[str], Counts]:
        if args.alignments:
            return list(map(pharaoh, translator.align(*zip(*pairs, strict=True)))), {}
        scored = translator.score_pairs(*zip(*pairs, strict=True))
        values = scored.log_probs / scored.num_tokens if args.per_token else scored.log_probs
        counts = {"cut": scored.num_cut, "not_finite": sum(not isfinite(x) for x in values)}
        return [f"{value:.6f}" for value in values], counts

    return answer(Output(sys.stdout.buffer), pairs, chunk_size, reply)
