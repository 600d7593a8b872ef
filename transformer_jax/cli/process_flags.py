"""Flags with which several processes find each other, and how they end together."""

import argparse
import os
import sys
from typing import NoReturn


def add_process_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds --distributed, --coordinator_address, --num_processes and --process_id."""
    group = parser.add_argument_group("several processes (the same command in each)")
    group.add_argument(
        "--distributed",
        action="store_true",
        help="join the other processes, as TPU, SLURM, Kubernetes or Open MPI says",
    )
    group.add_argument("--coordinator_address", metavar="HOST:PORT", help="where process 0 listens")
    group.add_argument("--num_processes", type=int, metavar="N", help="how many there are")
    group.add_argument("--process_id", type=int, metavar="I", help="which this is, from 0")


def start_processes(args: argparse.Namespace) -> None:
    """Joins the other processes where the flags say that there are some.

    Raises:
        UserError: they cannot be found.
    """
    given = (args.coordinator_address, args.num_processes, args.process_id)
    if args.distributed or any(value is not None for value in given):
        from transformer_jax.parallel import processes

        processes.start(*given)


def end_at_once(status: int) -> NoReturn:
    """Ends this process after an error, without waiting for other processes or its threads.

    The distributed runtime's own goodbye waits for all processes, and one may be dead;
    without it they notice by its silence and end too.
    """
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(status)
