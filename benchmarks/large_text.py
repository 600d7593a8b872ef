"""Seconds and peak memory of a large text: preparing it, and the start of a training on it.

    python benchmarks/large_text.py [--pairs=100000,1000000] [--folder=DIR] [--shards=2]

The text is made: each line joins two sentences of the embedded corpus's grammar and an invented
name between them, drawn at random. It is prepared in the steps of `transformer-jax prepare` with
its usual filters' counts, one process for each shard, and then read as a training does it with the
default settings of the batches. Each size has processes of its own. `peak` is the largest resident
memory of a process up to the end of a stage, in MiB, for the shards that of the largest of them;
it includes JAX and, for tf.data, TensorFlow. `mapped` is the part of the memory at the end of the
stage that is files, such as the ids, which the system takes back when it needs memory. The last
column is the seconds for a million pairs. One table on stdout.
"""

import argparse
import hashlib
import json
import os
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from itertools import islice, product
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import numpy as np

from transformer_jax.data.config import BatchConfig, DataConfig, TokenizerConfig
from transformer_jax.data.sources.files import Files
from transformer_jax.data.sources.grammar.sentences import generate

_BATCHES = 200
_PIECES = 6000  # as many as these words support


def write_text(folder: Path, pairs: int) -> None:
    """Writes `train.en` and `train.de`."""
    base = generate(0, 30_000)
    syllables = [first + second for first in "bdfgklmnprstvz" for second in "aeiou"]
    names = ["".join(each) for each in product(syllables, repeat=2)]
    names += [f"{first}{second}" for first, second in product(names[:300], syllables)]
    for side, language in enumerate(("en", "de")):
        rng = np.random.default_rng(0)
        sentences = [pair[side] for pair in base]
        with open(folder / f"train.{language}", "w", encoding="utf-8") as file:
            for start in range(0, pairs, 10_000):
                count = min(10_000, pairs - start)
                drawn = rng.integers(0, len(base), (2, count)).tolist()
                named = rng.integers(0, len(names), count).tolist()
                file.writelines(
                    f"{sentences[i]} {names[k].title()}: {sentences[j]}\n"
                    for i, j, k in zip(*drawn, named, strict=True)
                )


def measure(folder: Path, shards: int) -> dict[str, tuple[float, int, int]]:
    """(seconds, peak MiB, mapped MiB) of each stage, in this process."""
    import jax  # noqa: F401  # as in training

    from transformer_jax.commands.prepare.shards import (
        Preparation,
        begin,
        learn_tokenizers,
        merge,
    )
    from transformer_jax.config import Config
    from transformer_jax.data.batches import BatchPlan, Stream
    from transformer_jax.data.ids import ids_of_text
    from transformer_jax.data.pipeline import batches
    from transformer_jax.data.splits import first_documents, resolve
    from transformer_jax.data.tokenizer_training import tokenizers_of_text
    from transformer_jax.runs.prepared import with_prepared

    stages: dict[str, tuple[float, int, int]] = {}
    began = time.perf_counter()

    def done(stage: str, peak: float | None = None) -> None:
        nonlocal began
        now = time.perf_counter()
        values = _mebibytes("VmHWM") if peak is None else peak, _mebibytes("RssFile")
        stages[stage] = (round(now - began, 1), round(values[0]), round(values[1]))
        began = time.perf_counter()

    source = Files(
        train_source=(str(folder / "train.en"),), train_target=(str(folder / "train.de"),)
    )
    data = resolve(DataConfig(source, validation_from_train=1000))
    config = TokenizerConfig(vocab_size=_PIECES)
    preparation = Preparation(folder / "prepared", data, config, part_pairs=100_000)
    begin(preparation)
    done("start")
    learn_tokenizers(preparation)
    done("tokenizer")
    with ProcessPoolExecutor(shards, get_context("spawn")) as pool:
        peaks = list(pool.map(partial(_shard, preparation, shards=shards), range(shards)))
    done(f"{shards} shards", max(peaks))
    merge(preparation)
    done("merge")
    run, _ = with_prepared(Config(data=DataConfig(prepared=str(preparation.folder))), None)
    first_documents(run.data, "validation", 500)
    ids = ids_of_text(run.data, tokenizers_of_text(run.tokenizer, run.data))
    done("ids")
    plan = BatchPlan(ids.source.lengths, ids.target.lengths, BatchConfig())
    done("plan")
    key = hashlib.sha256((plan.fingerprint + ids.fingerprint).encode())
    done("fingerprints")
    for batch in islice(batches(Stream(ids, plan)), _BATCHES):
        key.update(batch["source"].tobytes())
    done(f"{_BATCHES} batches")
    return stages


def _shard(preparation: Any, number: int, shards: int) -> float:
    """Makes a shard; the peak of this process in MiB."""
    from transformer_jax.commands.prepare.shards import make_shard

    make_shard(preparation, number, shards)
    return _mebibytes("VmHWM")


def _mebibytes(name: str) -> float:
    """An entry of this process's status (Linux): VmHWM is the peak, RssFile the mapped files."""
    status = Path("/proc/self/status").read_text()
    return int(status.partition(f"{name}:")[2].split()[0]) / 1024


def main() -> None:
    """Prints the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--pairs", default="100000,1000000")
    parser.add_argument("--folder", default=tempfile.gettempdir())
    parser.add_argument("--shards", type=int, default=2)
    parser.add_argument("--measure", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.measure:
        print(json.dumps(measure(Path(arguments.measure), arguments.shards)))
        return
    columns = ["pairs", "stage", "seconds", "peak MiB", "mapped MiB", "seconds a million"]
    print(f"| {' | '.join(columns)} |\n|{' --- |' * len(columns)}")
    for pairs in map(int, arguments.pairs.split(",")):
        with tempfile.TemporaryDirectory(dir=arguments.folder) as folder:
            write_text(Path(folder), pairs)
            command = [sys.executable, __file__, f"--measure={folder}"]
            made = subprocess.run(
                [*command, f"--shards={arguments.shards}"],
                check=True,
                stdout=subprocess.PIPE,
                env=os.environ,
            )
        stages = json.loads(made.stdout)
        sums = [round(sum(values[0] for values in stages.values()), 1)]
        sums += [max(values[i] for values in stages.values()) for i in (1, 2)]
        for stage, values in (stages | {"**all**": sums}).items():
            cells = [f"{pairs:,}", stage, *values, round(values[0] * 1e6 / pairs, 1)]
            print(f"| {' | '.join(map(str, cells))} |", flush=True)


if __name__ == "__main__":
    main()
