"""Experiments of many trainings: each is one line of JSON, written when it is done.

A training and its tests are a *row*. A row is made by a process of its own on a core of its own,
`--jobs=N` of them at a time, by the machinery of `compare`. What is in the file is not made again.
So the file can be committed as it grows, and an experiment that is cut off loses the rows in
progress alone; these continue from their last checkpoint.
"""

import argparse
import json
import os
import re
import sys
import time
from collections.abc import Callable, Sequence
from multiprocessing import get_context
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

import jax

from transformer_jax.commands.compare.jobs import run_jobs
from transformer_jax.commands.host_memory import keep_freed_memory
from transformer_jax.commands.signals import StopOnSignals, end_with_command
from transformer_jax.runs.log import log_to_console

#: RESULTS names another folder, for rows that are made again on another machine.
FOLDER = Path(os.environ.get("RESULTS") or Path(__file__).parent / "results")

Key = tuple[str, int]  # name of a row, seed
Rows = dict[Key, dict[str, Any]]


def read_rows(name: str) -> Rows:
    """The rows of an experiment that are done."""
    path = FOLDER / f"{name}.jsonl"
    lines = path.read_text(encoding="utf-8").splitlines() if path.exists() else []
    return {(row["row"], row["seed"]): row for row in map(json.loads, lines)}


def run_folder(name: str, row: str, seed: int) -> Path:
    """Where a row of an experiment is trained."""
    return Path("runs", name, re.sub(r"[^\w.]+", "_", row), f"seed_{seed}")


def main(
    name: str,
    keys: Sequence[Key] | Callable[[Rows], Sequence[Key]],
    make: Callable[[str, int], dict[str, Any]],
    about: str,
) -> None:
    """The command of an experiment.

    Args:
        name: of its file in `benchmarks/results`.
        keys: all rows, in the order in which they are made; or those that may be made by now, of
            those that are done.
        make: trains and tests a row. It is called in a process that imports the same script.
        about: for `--help`.
    """
    parser = argparse.ArgumentParser(description=about.partition("\n")[0])
    add = parser.add_argument
    add("--jobs", type=int, default=1, metavar="N", help="rows at a time, each on its own core")
    add("--only", default="", metavar="A,B", help="rows whose name has one of these")
    add("--list", action="store_true", help="name all rows, and which are done")
    args = parser.parse_args()

    def chosen() -> list[tuple[Key, bool]]:
        done = read_rows(name)
        due = keys(done) if callable(keys) else keys
        return [(k, k in done) for k in due if any(part in k[0] for part in args.only.split(","))]

    if args.list:
        for (row, seed), is_done in chosen():
            print("done   " if is_done else "missing", row, seed)
        return

    jax.config.update("jax_platforms", "cpu")  # the devices are the rows'

    def process_of(key: Key) -> BaseProcess:
        print(time.strftime("%H:%M:%S"), "begins:", *key, flush=True)
        return get_context("spawn").Process(target=_make, args=(name, make, *key))

    failed = run_jobs(
        lambda: [key for key, is_done in chosen() if not is_done],
        process_of,
        lambda: None,
        args.jobs,
        StopOnSignals(),
    )
    sys.exit(f"stopped or failed: {failed}" if failed != [] else 0)


def _make(name: str, make: Callable[[str, int], dict[str, Any]], row: str, seed: int) -> None:
    """Makes a row on one core; what it says goes to `output.txt` of its folder."""
    end_with_command()
    keep_freed_memory()
    log_to_console()
    os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
    folder = run_folder(name, row, seed)
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / "output.txt").open("ab") as log:
        os.dup2(log.fileno(), 1)
        os.dup2(log.fileno(), 2)
    made = {"row": row, "seed": seed} | make(row, seed)
    made["device"] = jax.devices()[0].device_kind
    FOLDER.mkdir(exist_ok=True)
    with (FOLDER / f"{name}.jsonl").open("a", encoding="utf-8") as file:
        file.write(json.dumps(made) + "\n")
    print(json.dumps(made), flush=True)
