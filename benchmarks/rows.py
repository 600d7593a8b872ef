"""Experiments of many trainings: each is one line of JSON, written when it is done.

A training and its tests are a *row*. A row is made by a process of its own, with `--jobs=N` on a
core of its own, and what is in the file is not made again. So the file can be committed as it
grows, and an experiment that is cut off loses the rows in progress alone; these continue from their
last checkpoint.
"""

import argparse
import json
import os
import re
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import jax

#: RESULTS names another folder, for rows that are made again on another machine.
FOLDER = Path(os.environ.get("RESULTS") or Path(__file__).parent / "results")

Key = tuple[str, int]  # name of a row, seed


def read_rows(name: str) -> dict[Key, dict[str, Any]]:
    """The rows of an experiment that are done."""
    path = FOLDER / f"{name}.jsonl"
    lines = path.read_text(encoding="utf-8").splitlines() if path.exists() else []
    return {(row["row"], row["seed"]): row for row in map(json.loads, lines)}


def run_folder(name: str, row: str, seed: int) -> Path:
    """Where a row of an experiment is trained."""
    return Path("runs", name, re.sub(r"\W+", "_", row), f"seed_{seed}")


def main(
    name: str, keys: Sequence[Key], make: Callable[[str, int], dict[str, Any]], about: str
) -> None:
    """The command of an experiment.

    Args:
        name: of its file in `benchmarks/results`.
        keys: all rows, in the order in which they are made.
        make: trains and tests a row; it is called in a process that runs the same script.
        about: for `--help`.
    """
    parser = argparse.ArgumentParser(description=about.partition("\n")[0])
    add = parser.add_argument
    add("--jobs", type=int, default=1, metavar="N", help="rows at a time, each on its own core")
    add("--only", default="", metavar="A,B", help="rows whose name has one of these")
    add("--list", action="store_true", help="name all rows, and which are done")
    add("--make", nargs=2, metavar=("ROW", "SEED"), help="make one row here")
    args = parser.parse_args()
    if args.make:
        row, seed = args.make[0], int(args.make[1])
        made = {"row": row, "seed": seed} | make(row, seed)
        made["device"] = jax.devices()[0].device_kind
        FOLDER.mkdir(exist_ok=True)
        with (FOLDER / f"{name}.jsonl").open("a", encoding="utf-8") as file:
            file.write(json.dumps(made) + "\n")
        print(json.dumps(made), flush=True)
        return
    done = read_rows(name)
    chosen = [key for key in keys if any(part in key[0] for part in args.only.split(","))]
    if args.list:
        for row, seed in chosen:
            print("done   " if (row, seed) in done else "missing", row, seed)
        return
    run_jobs([key for key in chosen if key not in done], args.jobs)


def run_jobs(missing: list[Key], jobs: int) -> None:
    """Makes rows, so many at a time, each by a process on one core."""
    cores = sorted(os.sched_getaffinity(0))
    running: dict[int, subprocess.Popen[bytes]] = {}
    while missing or running:
        for job in range(jobs):
            if job in running and running[job].poll() is not None:
                del running[job]
            if job not in running and missing:
                row, seed = missing.pop(0)
                print("begins:", row, seed, flush=True)
                running[job] = subprocess.Popen(
                    [sys.executable, sys.argv[0], "--make", row, str(seed)],
                    preexec_fn=partial(os.sched_setaffinity, 0, {cores[job % len(cores)]}),
                )
        time.sleep(2)
