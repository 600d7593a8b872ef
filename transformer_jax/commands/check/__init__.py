"""Tries this machine's devices: do they compute what they should, and how fast?

    transformer-jax check

A product is timed. Each attention kernel that the device uses is compared with plain attention, a
small model's training steps and searches with the CPU's, and each mixer's steps with its parallel
form. Then a training step and a search are timed, beside what a plan expects of the device. Nothing
is read or written. It takes a minute or two. The exit status is 1 if something is wrong, and 2 if
nothing is, but something is missing.
"""

import argparse
import json
import signal
import sys
import threading
from itertools import chain

from transformer_jax.commands.check.row import Row
from transformer_jax.commands.flags import Parser
from transformer_jax.errors import UserError, hint

PARTS = ("machine", "product", "attention", "model", "mixers", "speed")


def add_arguments(parser: Parser) -> None:
    """Adds the flags of `transformer-jax check`."""
    parts = ",".join(PARTS)
    parser.add_argument("--parts", default=parts, metavar="NAMES", help=f"some of {parts}")
    text = "seconds that each part waits for its programs, then without these rows (default 300)"
    parser.add_argument("--limit", type=float, default=300.0, metavar="SECONDS", help=text)
    parser.add_argument("--json", action="store_true", help="a JSON object for each line")


def run(args: argparse.Namespace) -> int:
    """Prints each row as soon as it is known."""
    chosen = args.parts.split(",")
    for name in chosen:
        if name not in PARTS:
            raise UserError(f"--parts={name}: no such part{hint(name, PARTS)}; {', '.join(PARTS)}")
    if not 0 <= args.limit <= threading.TIMEOUT_MAX:
        raise UserError(f"--limit={args.limit:g}: must be a number of seconds")
    import jax

    from transformer_jax.commands.check import machine, numbers, speed
    from transformer_jax.commands.check.jobs import NUM_THREADS, Job, run
    from transformer_jax.commands.main import end_at_once
    from transformer_jax.plan.topologies import this_machine

    target, cpu = this_machine(), jax.devices("cpu")[0]
    first = [Job("machine", "devices", {}, lambda _: machine.rows()), speed.product_job(target)]
    others = [*numbers.jobs(jax.devices()[0], cpu), *speed.jobs(target)]
    # Nothing else is compiled while the product is timed.
    groups = [[job for job in jobs if job.part in chosen] for jobs in (first, others)]
    number = sum(len(job.programs) for job in chain(*groups))
    print(f"compiling {number} programs in {NUM_THREADS} threads", file=sys.stderr, flush=True)
    rows: list[Row] = []

    def show(row: Row) -> None:
        if args.json:
            print(json.dumps(vars(row) | {"ok": row.is_ok}), flush=True)
        else:
            if not rows or row.part != rows[-1].part:
                print(row.part)
            mark = "" if row.limit is None else {True: "ok", False: "WRONG", None: "-"}[row.is_ok]
            print(f"  {mark:<7}{row.name:<52}{row.text}", flush=True)
        rows.append(row)

    signal.signal(signal.SIGTERM, signal.default_int_handler)  # as Ctrl-C
    try:
        for jobs in groups:
            for row in run(jobs, args.limit):
                show(row)
    except KeyboardInterrupt:
        for job in chain(*groups):
            show(job.missing("interrupted"))
    wrong = [row.name for row in rows if row.is_ok is False]
    if wrong and not args.json:
        print(f"wrong: {'; '.join(wrong)}")
    if any(row.is_ok is None for row in rows):
        end_at_once(1 if wrong else 2)  # what is being compiled cannot be interrupted
    return 1 if wrong else 0
