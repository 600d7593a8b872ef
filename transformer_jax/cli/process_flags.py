"""Several processes: the flags by which they find each other, and how one ends early."""

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
        help="join the other processes of this job on TPU, SLURM, Kubernetes or Open MPI",
    )
    group.add_argument("--coordinator_address", metavar="HOST:PORT", help="address of process 0")
    group.add_argument("--num_processes", type=int, metavar="N", help="number of processes")
    group.add_argument("--process_id", type=int, metavar="I", help="number of this process, from 0")


def start_processes(args: argparse.Namespace) -> None:
    """Joins the other processes, if the flags name any.

    Raises:
        UserError: they cannot be reached.
    """
    address = (args.coordinator_address, args.num_processes, args.process_id)
    if args.distributed or any(value is not None for value in address):
        from transformer_jax.parallel import processes

        processes.start(*address)


def end_at_once(status: int) -> NoReturn:
    """Ends this process after an error, without waiting for other processes or threads.

    A normal exit waits in the distributed runtime for all processes, and one may have failed.
    After this exit the others notice that this one is silent, and end too.
    """
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(status)
