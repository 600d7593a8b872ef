"""Tries this machine's devices: do they compute what they should, and how fast?

    transformer-jax check

A small model's training steps and searches are compared with the CPU's, each attention kernel
that the device uses with plain attention, and each mixer's steps with its parallel form. Then a
product, a training step and a search are timed, beside what a plan expects of the device. Nothing
is read or written. It takes a minute or two on a CPU, and more on a GPU, where XLA tries several
kernels for each product. The exit status is 1 if something is wrong.
"""

import argparse
import json
from itertools import chain

from transformer_jax.cli.flags import Parser


def add_arguments(parser: Parser) -> None:
    """Adds the flags of `transformer-jax check`."""
    parser.add_argument("--json", action="store_true", help="a JSON object for each line")


def run(args: argparse.Namespace) -> int:
    """Prints each row as soon as it is known."""
    from transformer_jax.checks import machine, numbers, speed

    part, failed, rows = "", [], chain(machine.rows(), numbers.rows(), speed.rows())
    for row in rows:
        if not row.is_ok:
            failed.append(row.name)
        if args.json:
            print(json.dumps(vars(row) | {"ok": row.is_ok}), flush=True)
            continue
        if row.part != part:
            print(row.part)
            part = row.part
        mark = "" if row.limit is None else "ok" if row.is_ok else "WRONG"
        print(f"  {mark:<7}{row.name:<52}{row.text}", flush=True)
    if failed and not args.json:
        print(f"wrong: {'; '.join(failed)}")
    return 1 if failed else 0
