"""Training speed of this package compared with a PyTorch loop, in alternation.

    pip install torch    # or: ./run setup bench
    python benchmarks/training_speed.py [--source=FILE --target=FILE] [--rounds=8] [--only=f32]

Each contender runs in a process of its own with the same number of threads, the same model and
the same length-bucketed batches. They take turns, one pass over the batches at a time, so that a
machine that slows down slows all of them; the ratio is taken for each turn. Tokens are real
target tokens, without padding. The PyTorch loop is `benchmarks/torch_baseline.py`, as fast as we
could make it ("tuned"), or with the library's own fused attention and dropout ("fused"). A CPU
without bfloat16 products emulates them slowly; leave these contenders out with --only=f32.
"""

import argparse
import json
import subprocess
import sys
import time
from collections.abc import Callable
from typing import Any

import numpy as np

SIZES = {"d_model": 256, "d_ff": 1024, "num_heads": 4}
NUM_LAYERS, VOCAB_SIZE, DROPOUT_RATE = 3, 8000, 0.1

#: Name -> the values of `torch_baseline.BaselineConfig` that differ between the contenders.
TORCH_VARIANTS: dict[str, dict[str, Any]] = {
    "torch tuned bf16": {"dtype": "bfloat16"},
    "torch tuned f32": {"dtype": "float32"},
    "torch fused bf16": {"dtype": "bfloat16", "tuned": False},
    "torch fused f32": {"dtype": "float32", "tuned": False},
}
#: Name -> `model.matmul_dtype`.
JAX_VARIANTS = {"transformer_jax bf16": "bfloat16", "transformer_jax f32": "float32"}

Batch = dict[str, np.ndarray]

#: Makes one pass over the batches: (seconds, real target tokens).
Pass = Callable[[], tuple[float, int]]


def make_batches(arguments: argparse.Namespace) -> list[Batch]:
    """One full batch of every shape of the corpus."""
    from pipeline_speed import synthetic_corpus

    from transformer_jax.data.batches import BatchPlan, Stream, make_batch
    from transformer_jax.data.config import BatchConfig, TokenizerConfig
    from transformer_jax.data.ids import ids_of_pairs
    from transformer_jax.data.sources.files import read_lines
    from transformer_jax.data.tokenizer_training import train_tokenizers

    if arguments.source:
        lines = read_lines(arguments.source), read_lines(arguments.target)
        pairs = list(zip(*lines, strict=True))
        tokenizers = train_tokenizers(TokenizerConfig(vocab_size=VOCAB_SIZE), pairs)
        corpus = ids_of_pairs(pairs, tokenizers)
    else:
        corpus = synthetic_corpus()
    config = BatchConfig(tokens=arguments.tokens, num_buckets=arguments.shapes)
    plan = BatchPlan(corpus.source.lengths, corpus.target.lengths, config)
    by_shape: dict[tuple[int, ...], Batch] = {}
    for position in range(plan.batches_per_epoch):
        batch = make_batch(Stream(corpus, plan), position)
        if batch["target_mask"].any(axis=1).all():  # full
            by_shape.setdefault(batch["target"].shape, batch)
    return list(by_shape.values())


def jax_trainer(matmul_dtype: str) -> tuple[Any, Any]:
    """The trainer of this package, and its mesh."""
    from transformer_jax.commands.host_memory import keep_freed_memory
    from transformer_jax.config import TrainConfig
    from transformer_jax.models.config import ModelConfig, StackConfig
    from transformer_jax.parallel.mesh import MeshConfig, make_mesh
    from transformer_jax.training.trainer import Trainer

    keep_freed_memory()
    stack = StackConfig(num_layers=NUM_LAYERS)
    model = ModelConfig(
        source_vocab_size=VOCAB_SIZE,
        target_vocab_size=VOCAB_SIZE,
        encoder=stack,
        decoder=stack,
        dropout_rate=DROPOUT_RATE,
        matmul_dtype=matmul_dtype,  # type: ignore[arg-type]
        **SIZES,  # type: ignore[arg-type]
    )
    mesh = make_mesh(MeshConfig())
    return Trainer(model, TrainConfig(), mesh), mesh


def jax_pass(batches: list[Batch], matmul_dtype: str) -> Pass:
    """The training step of this package."""
    import jax

    from transformer_jax.parallel.mesh import batch_sharding

    trainer, mesh = jax_trainer(matmul_dtype)
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


def torch_pass(batches: list[Batch], options: dict[str, Any]) -> Pass:
    """The PyTorch loop."""
    from torch_baseline import Baseline, BaselineConfig

    config = BaselineConfig(
        num_layers=NUM_LAYERS,
        vocab_size=VOCAB_SIZE,
        dropout_rate=DROPOUT_RATE,
        **SIZES,
        **options,
    )
    return Baseline(config, batches).one_pass


def work(name: str, batches: list[Batch]) -> None:
    """A contender's process: one pass, and one line of JSON, for each line on standard input."""
    if name in TORCH_VARIANTS:
        one_pass = torch_pass(batches, TORCH_VARIANTS[name])
    else:
        one_pass = jax_pass(batches, JAX_VARIANTS[name])
    for _ in sys.stdin:
        print(json.dumps(one_pass()), flush=True)


class Contender:
    """A worker process, seen from the parent."""

    def __init__(self, name: str) -> None:
        self.name, self.rates = name, list[float]()
        self._process = subprocess.Popen(  # makes the same batches of the same arguments
            [sys.executable, *sys.argv, f"--worker={name}"],
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
    """Lets the contenders take turns and prints the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--source", help="source text; default: a synthetic corpus of ids")
    parser.add_argument("--target")
    parser.add_argument("--tokens", type=int, default=2048, help="budget of a batch")
    parser.add_argument("--shapes", type=int, default=4)
    parser.add_argument("--rounds", type=int, default=8)
    parser.add_argument("--only", default="", help="contenders whose name contains this")
    parser.add_argument("--worker", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    batches = make_batches(arguments)
    if arguments.worker:
        work(arguments.worker, batches)
        return
    print(f"batches: {[batch['target'].shape for batch in batches]}", file=sys.stderr)
    names = [name for name in (*JAX_VARIANTS, *TORCH_VARIANTS) if arguments.only in name]
    contenders = [Contender(name) for name in names]
    for contender in contenders:  # compiles, and grows the memory
        for _ in range(2):
            contender.turn()
    for number in range(arguments.rounds):
        for contender in contenders:
            contender.rates.append(contender.turn())
        print(f"round {number + 1} of {arguments.rounds}", file=sys.stderr)
    for contender in contenders:
        contender.close()
    first, ours = contenders[0].name, np.array(contenders[0].rates)
    print(f"{SIZES}, {NUM_LAYERS} + {NUM_LAYERS} layers, vocabulary {VOCAB_SIZE}")
    print(f"{len(batches)} batches a turn, {arguments.rounds} turns")
    print(f"| contender | median tokens/s | best | {first} / contender, median of the turns |")
    print("| --- | --- | --- | --- |")
    for contender in contenders:
        rates = np.array(contender.rates)
        ratio = float(np.median(ours / rates))
        print(f"| {contender.name} | {np.median(rates):,.0f} | {rates.max():,.0f} | {ratio:.2f} |")


if __name__ == "__main__":
    main()
