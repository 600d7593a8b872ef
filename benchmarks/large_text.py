"""Seconds and peak memory of preparing a large text: reading, tokenizer, ids, batch plan, batches.

    python benchmarks/large_text.py [--pairs=100000,1000000] [--folder=DIR] [--engine=auto]

The text is made: each line joins two sentences of the embedded corpus's grammar and an invented
name between them, drawn at random.
Each size runs in a process of its own, as training does it, on one text with the default settings
of the batches. `peak` is the largest resident memory up to the end of a stage, in MiB; it includes
JAX and, for tf.data, TensorFlow. `mapped` is the part of the memory at the end of the stage that
is files, such as the ids, which the system takes back when it needs memory. One table on stdout.
"""

import argparse
import hashlib
import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from itertools import islice, product
from pathlib import Path

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


def measure(folder: Path, engine: str) -> dict[str, tuple[float, int, int]]:
    """(seconds, peak MiB, mapped MiB) of each stage, in this process."""
    import jax  # noqa: F401  # as in training

    from transformer_jax.data.batches import BatchPlan
    from transformer_jax.data.ids import ids_of_text
    from transformer_jax.data.pipeline import batches
    from transformer_jax.data.splits import resolve
    from transformer_jax.data.tokenizer_training import tokenizers_of_text
    from transformer_jax.data.training_text import TrainingText

    stages: dict[str, tuple[float, int, int]] = {}
    began = time.perf_counter()

    def done(stage: str) -> None:
        nonlocal began
        now = time.perf_counter()
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
        stages[stage] = (round(now - began, 1), round(peak), round(_mapped()))
        began = time.perf_counter()

    source = Files(
        train_source=(str(folder / "train.en"),), train_target=(str(folder / "train.de"),)
    )
    data = resolve(DataConfig(source, cache_dir=str(folder / "cache"), validation_from_train=1000))
    done("start")
    with TrainingText(data, is_new=True) as text:
        text.validation(500)
        done("read")
        config = TokenizerConfig(vocab_size=_PIECES)
        tokenizers = tokenizers_of_text(config, data, text)
        done("tokenizer")
        ids = ids_of_text(text, tokenizers)
    done("ids")
    plan = BatchPlan(ids.source.lengths, ids.target.lengths, BatchConfig())
    done("plan")
    key = hashlib.sha256((plan.fingerprint + ids.fingerprint).encode())
    done("fingerprints")
    stream = batches(ids, plan, engine=engine)  # type: ignore[arg-type]
    for batch in islice(stream, _BATCHES):
        key.update(batch["source"].tobytes())
    done(f"{_BATCHES} batches")
    return stages


def _mapped() -> float:
    """MiB of resident pages of files (Linux)."""
    status = Path("/proc/self/status").read_text()
    return int(status.partition("RssFile:")[2].split()[0]) / 1024


def main() -> None:
    """Prints the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--pairs", default="100000,1000000")
    parser.add_argument("--folder", default=tempfile.gettempdir())
    parser.add_argument("--engine", default="auto")
    parser.add_argument("--measure", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.measure:
        print(json.dumps(measure(Path(arguments.measure), arguments.engine)))
        return
    print("| pairs | stage | seconds | peak MiB | mapped MiB |\n| --- | --- | --- | --- | --- |")
    for pairs in map(int, arguments.pairs.split(",")):
        with tempfile.TemporaryDirectory(dir=arguments.folder) as folder:
            write_text(Path(folder), pairs)
            command = [sys.executable, __file__, f"--measure={folder}"]
            done = subprocess.run(
                [*command, f"--engine={arguments.engine}"],
                check=True,
                stdout=subprocess.PIPE,
                env=os.environ,
            )
        for stage, values in json.loads(done.stdout).items():
            print(f"| {pairs:,} | {stage} | {' | '.join(map(str, values))} |", flush=True)


if __name__ == "__main__":
    main()
