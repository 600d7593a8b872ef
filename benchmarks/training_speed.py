"""Training speed of this package against a PyTorch loop, turn by turn in one run.

    pip install torch    # or: ./run setup bench
    python benchmarks/training_speed.py [--source=FILE --target=FILE] [--rounds=8] [--only=f32]

Each contender lives in a process of its own with the same number of threads, the
same model and the same length-bucketed batches. They take turns, one pass over the
batches at a time, so that a machine that slows down slows them all; the ratio is
taken turn by turn. Tokens are real target tokens, padding not counted. The PyTorch
loop is `benchmarks/torch_baseline.py`, as fast as its author could make it ("tuned"),
and with the library's own fused attention and dropout ("fused"). Where the CPU has no
bfloat16 products those contenders emulate them, slowly: leave them out with --only=f32.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

MODEL = {"d_model": 256, "d_ff": 1024, "num_heads": 4, "num_layers": 3}
VOCAB, DROPOUT = 8000, 0.1
KEYS = ("source", "source_mask", "target", "target_mask")

TORCH_VARIANTS: dict[str, dict[str, Any]] = {
    "torch tuned bf16": {"autocast": "bf16"},
    "torch tuned f32": {"autocast": "none"},
    "torch fused bf16": {"autocast": "bf16", "attention": "fused", "dropout_kind": "library"},
    "torch fused f32": {"autocast": "none", "attention": "fused", "dropout_kind": "library"},
}
JAX_VARIANTS = {"transformer_jax bf16": "bfloat16", "transformer_jax f32": "float32"}


def make_batches(arguments: argparse.Namespace) -> list[dict[str, np.ndarray]]:
    """One batch of every shape that Multi30k (or a corpus like it) is cut into."""
    from pipeline_speed import read, synthetic_corpus

    from transformer_jax.data.batches import BatchPlan, make_batch
    from transformer_jax.data.config import BatchConfig, TokenizerConfig
    from transformer_jax.data.corpus import prepare_ids
    from transformer_jax.data.tokenizer import train_tokenizers

    if arguments.source:
        pairs = list(zip(read(arguments.source), read(arguments.target), strict=True))
        with tempfile.TemporaryDirectory() as folder:
            tokenizers = train_tokenizers(TokenizerConfig(vocab_size=VOCAB), pairs)
            corpus = prepare_ids(lambda: pairs, tokenizers, Path(folder) / "ids", "benchmark")
    else:
        corpus = synthetic_corpus()
    config = BatchConfig(tokens=arguments.tokens, num_buckets=arguments.shapes)
    plan = BatchPlan(corpus.source_lengths, corpus.target_lengths, config)
    found: dict[Any, dict[str, np.ndarray]] = {}
    for position in range(plan.batches_per_epoch):
        batch = make_batch(corpus, plan, position)
        if batch["target_mask"].any(axis=1).all():  # full
            found.setdefault(batch["target"].shape, batch)
    return list(found.values())


def jax_steps(batches: list[dict[str, np.ndarray]], matmul_dtype: str) -> Any:
    """A function that makes one pass over the batches and returns (seconds, tokens)."""
    import jax

    from transformer_jax.cli.host_memory import keep_freed_memory
    from transformer_jax.config import TrainConfig
    from transformer_jax.models.config import ModelConfig, StackConfig
    from transformer_jax.parallel.mesh import MeshConfig, batch_sharding, make_mesh
    from transformer_jax.training.trainer import Trainer

    keep_freed_memory()
    stack = StackConfig(num_layers=MODEL["num_layers"])
    model = ModelConfig(
        source_vocab_size=VOCAB,
        target_vocab_size=VOCAB,
        d_model=MODEL["d_model"],
        d_ff=MODEL["d_ff"],
        num_heads=MODEL["num_heads"],
        encoder=stack,
        decoder=stack,
        dropout_rate=DROPOUT,
    )
    model = replace(model, matmul_dtype=matmul_dtype)  # type: ignore[arg-type]
    mesh = make_mesh(MeshConfig())
    trainer = Trainer(model, TrainConfig(), mesh)
    state = trainer.init()

    def one_pass() -> tuple[float, int]:
        nonlocal state
        began = time.perf_counter()
        for batch in batches:
            state, metrics = trainer.step(state, jax.device_put(batch, batch_sharding(mesh)))
            jax.block_until_ready(metrics)
        seconds = time.perf_counter() - began
        return seconds, sum(int(batch["target_mask"].sum()) for batch in batches)

    return one_pass


def torch_steps(path: Path, options: dict[str, Any]) -> Any:
    """The same for the PyTorch loop."""
    from torch_baseline import Baseline, BaselineConfig, load_batches

    config = replace(BaselineConfig(), **MODEL, **options)
    baseline = Baseline(config, load_batches(path))

    def one_pass() -> tuple[float, int]:
        results = list(baseline.steps(len(baseline.batches)))
        return sum(r[0] for r in results), sum(r[1] for r in results)

    return one_pass


def work(name: str, path: Path) -> None:
    """A contender: one pass for each line on standard input, one JSON line for each."""
    if name in TORCH_VARIANTS:
        one_pass = torch_steps(path, TORCH_VARIANTS[name])
    else:
        with np.load(path) as arrays:
            count = len(arrays.files) // len(KEYS)
            batches = [{key: arrays[f"{key}_{i}"] for key in KEYS} for i in range(count)]
        one_pass = jax_steps(batches, JAX_VARIANTS[name])
    for _ in sys.stdin:
        print(json.dumps(one_pass()), flush=True)


class Contender:
    """The parent's end of a worker process."""

    def __init__(self, name: str, path: Path) -> None:
        self.name, self.rates = name, list[float]()
        self._process = subprocess.Popen(
            [sys.executable, __file__, f"--worker={name}", f"--batches={path}"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def turn(self) -> float:
        """One pass; its real target tokens a second."""
        assert self._process.stdin and self._process.stdout
        self._process.stdin.write("go\n")
        self._process.stdin.flush()
        seconds, tokens = json.loads(self._process.stdout.readline())
        return tokens / seconds

    def close(self) -> None:
        """Ends the worker."""
        assert self._process.stdin
        self._process.stdin.close()
        self._process.wait()


def main() -> None:
    """Runs the turns and prints the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--source", help="source text; default: a synthetic corpus of ids")
    parser.add_argument("--target")
    parser.add_argument("--tokens", type=int, default=2048, help="budget of a batch")
    parser.add_argument("--shapes", type=int, default=4)
    parser.add_argument("--rounds", type=int, default=8)
    parser.add_argument("--only", default="", help="contenders whose name contains this")
    parser.add_argument("--worker", help=argparse.SUPPRESS)
    parser.add_argument("--batches", type=Path, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.worker:
        work(arguments.worker, arguments.batches)
        return
    batches = make_batches(arguments)
    print(f"batches: {[batch['target'].shape for batch in batches]}", file=sys.stderr)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "batches.npz"
        np.savez(path, **{f"{k}_{i}": b[k] for i, b in enumerate(batches) for k in KEYS})  # type: ignore[arg-type]
        names = [name for name in (*JAX_VARIANTS, *TORCH_VARIANTS) if arguments.only in name]
        contenders = [Contender(name, path) for name in names]
        for contender in contenders:  # compilation and first touch of memory
            for _ in range(2):
                contender.turn()
        for number in range(arguments.rounds):
            for contender in contenders:
                contender.rates.append(contender.turn())
            print(f"round {number + 1} of {arguments.rounds}", file=sys.stderr)
        for contender in contenders:
            contender.close()
    first, ours = contenders[0].name, np.array(contenders[0].rates)
    print(f"{MODEL}, vocabulary {VOCAB}, {len(batches)} batches a turn, {arguments.rounds} turns")
    print(f"| contender | median tokens/s | best | {first} / it, median of the turns |")
    print("| --- | --- | --- | --- |")
    for contender in contenders:
        rates = np.array(contender.rates)
        ratio = float(np.median(ours / rates))
        print(f"| {contender.name} | {np.median(rates):,.0f} | {rates.max():,.0f} | {ratio:.2f} |")


if __name__ == "__main__":
    main()
