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

from transformer_jax.commands.check.row import Row
from transformer_jax.commands.flags import Parser
from transformer_jax.errors import UserError, hint

PARTS = ("machine", "product", "attention", "model", "mixers", "speed")


def add_arguments(parser: Parser) -> None:
    """Adds the flags of `transformer-jax check`."""
    parts = ",".join(PARTS)
    parser.add_argument("--parts", default=parts, metavar="NAMES", help=f"some of {parts}")
    text = "seconds for each part, which then ends without its other rows (default 300)"
    parser.add_argument("--limit", type=float, default=300.0, metavar="SECONDS", help=text)
    parser.add_argument("--json", action="store_true", help="a JSON object for each line")


def run(args: argparse.Namespace) -> int:
    """Prints each row as soon as it is known."""
    chosen = args.parts.split(",")
    for name in chosen:
        if name not in PARTS:
            raise UserError(f"--parts={name}: no such part{hint(name, PARTS)}; {', '.join(PARTS)}")
    import jax

    from transformer_jax.commands.check import machine, numbers, speed
    from transformer_jax.commands.check.jobs import NUM_THREADS, Job, NotFinished, Queue
    from transformer_jax.commands.main import end_at_once
    from transformer_jax.plan.topologies import this_machine

    target = this_machine()
    first = [
        Job("machine", ["devices", "versions"], {}, lambda _: machine.rows()),
        speed.product_job(target),
    ]
    others = [*numbers.jobs(jax.devices()[0], jax.devices("cpu")[0]), *speed.jobs(target)]
    # Nothing else is compiled while the product is timed.
    groups = [[job for job in jobs if job.part in chosen] for jobs in (first, others)]
    left = [job for jobs in groups for job in jobs]
    number = sum(len(job.programs) for job in left)
    print(f"compiling {number} programs in {NUM_THREADS} threads", file=sys.stderr, flush=True)
    heading, failed, missing = "", [], []
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # `timeout` says it like Ctrl-C
    try:
        for jobs in groups:
            queue = Queue(jobs, args.limit)
            for index, job in enumerate(jobs):
                try:
                    for row in queue.rows(index):
                        failed += [] if row.is_ok else [row.name]
                        heading = _print(row, heading, args.json)
                except NotFinished as error:
                    missing.append((job, str(error)))
                left.remove(job)
    except KeyboardInterrupt:
        missing += [(job, "interrupted") for job in left]
    for job, why in missing:
        names = "; ".join(job.names)
        as_json = {"part": job.part, "name": names, "value": f"not finished: {why}", "ok": None}
        print(json.dumps(as_json) if args.json else f"not finished, {why}: {job.part}: {names}")
    if failed and not args.json:
        print(f"wrong: {'; '.join(failed)}")
    status = 1 if failed else 2 if missing else 0
    if missing:
        end_at_once(status)  # what is being compiled cannot be interrupted
    return status


def _print(row: Row, heading: str, as_json: bool) -> str:
    """Prints a row, below its part if that is not the heading; returns the part."""
    if as_json:
        print(json.dumps(vars(row) | {"ok": row.is_ok}), flush=True)
        return heading
    if row.part != heading:
        print(row.part)
    mark = "" if row.limit is None else "ok" if row.is_ok else "WRONG"
    print(f"  {mark:<7}{row.name:<52}{row.text}", flush=True)
    return row.part
