"""Log-probability of given translations: log p(target | source) in nats, one a line.

    transformer-jax score --workdir=DIR --source=in.en --target=out.de
    paste in.en out.de | transformer-jax score --workdir=DIR

Without files, standard input has lines `source <TAB> target`.
"""

import argparse
import sys
from collections.abc import Iterator

from transformer_jax.cli.flags import Parser
from transformer_jax.cli.lines import chunks, file_pairs, note_cut, stdin_lines, write_lines
from transformer_jax.cli.run_flags import DECODING, add_run_arguments, decode_overrides
from transformer_jax.decoding.config import DecodeConfig
from transformer_jax.errors import UserError

_CHUNK_LINES = 1024


def add_arguments(parser: Parser) -> None:
    """Adds the flags of `transformer-jax score`."""
    add_run_arguments(parser)
    parser.add_argument("--source", metavar="FILE", help="source sentences, one a line")
    parser.add_argument("--target", metavar="FILE", help="their translations, one a line")
    parser.add_argument(
        "--per_token", action="store_true", help="divide by the number of target pieces and EOS"
    )
    parser.add_config(DecodeConfig, title=DECODING, only=["batch_size", "target_prefix"])


def run(args: argparse.Namespace) -> int:
    """Writes a log-probability for each pair."""
    from transformer_jax.runs.folder import open_run

    pairs = _stdin_pairs()
    if args.source or args.target:
        pairs = iter(file_pairs(source=args.source, target=args.target))
    run = open_run(args.workdir)
    translator = run.translator(args.checkpoint, **decode_overrides(run, args.flags))
    done = num_cut = 0
    size = 1 if not args.source and sys.stdin.isatty() else _CHUNK_LINES
    for chunk in chunks(pairs, size):
        sources, targets = zip(*chunk, strict=True)
        scored = translator.score_pairs(sources, targets)
        values = scored.log_probs / scored.num_tokens if args.per_token else scored.log_probs
        write_lines([f"{value:.6f}" for value in values])
        done += len(chunk)
        num_cut += scored.num_cut
    note_cut(num_cut, f"{done} pairs")
    return 0


def _stdin_pairs() -> Iterator[tuple[str, str]]:
    for number, line in enumerate(stdin_lines(), start=1):
        source, tab, target = line.partition("\t")
        if not tab or "\t" in target:
            raise UserError(
                f"standard input:{number}: expected `source <TAB> target`, "
                f"found {line.count(chr(9))} tabs"
            )
        yield source, target
