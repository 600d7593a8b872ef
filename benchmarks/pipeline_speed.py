"""How many real target tokens a second the input pipeline yields.

    python benchmarks/pipeline_speed.py [--source=FILE --target=FILE] [--seconds=3]

Without files it uses a synthetic corpus with Multi30k's lengths. One table on stdout.
Segmentations are sampled in the prefetching thread. The first epoch is the slowest: it finds the
best segmentations of each sentence.
"""

import argparse
import gzip
import time
from pathlib import Path

import numpy as np

from transformer_jax.data.batches import BatchPlan, Sampler, Stream
from transformer_jax.data.config import BatchConfig, TokenizerConfig
from transformer_jax.data.ids import ids_of_pairs
from transformer_jax.data.pipeline import in_thread, through_tensorflow
from transformer_jax.data.sampling import SubwordSampler
from transformer_jax.data.sentences import IdCorpus
from transformer_jax.data.tensorflow import has_tensorflow
from transformer_jax.data.tokenizer_training import train_tokenizers

ALPHA = 0.2


def synthetic_corpus(pairs: int = 29_000, seed: int = 0) -> IdCorpus:
    """Random ids with about Multi30k's distribution of lengths."""
    rng = np.random.default_rng(seed)
    source = np.clip(rng.gamma(8.0, 1.8, pairs), 3, 52).astype(int)
    target = np.clip(source * rng.normal(1.03, 0.15, pairs), 3, 55).astype(int)
    draw = [[rng.integers(4, 8000, n) for n in lengths] for lengths in (source, target)]
    return IdCorpus.from_lists(draw[0], draw[1])


def read(path: str) -> list[str]:
    """Lines of a plain or gzipped UTF-8 file."""
    content = Path(path).read_bytes()
    text = gzip.decompress(content) if path.endswith(".gz") else content
    return text.decode("utf-8").removesuffix("\n").split("\n")


def measure(
    corpus: IdCorpus,
    plan: BatchPlan,
    engine: str,
    seconds: float,
    sampler: Sampler | None,
    skipped: int,
) -> float:
    """Real target tokens a second, without the first `skipped` batches."""
    made = through_tensorflow if engine == "tensorflow" else in_thread
    stream = made(Stream(corpus, plan, sampler=sampler), 0)
    for _ in range(skipped):
        next(stream)
    tokens, began = 0, time.perf_counter()
    while time.perf_counter() - began < seconds:
        tokens += int(next(stream)["target_mask"].sum())
    rate = tokens / (time.perf_counter() - began)
    stream.close()  # type: ignore[attr-defined]
    return rate


def main() -> None:
    """Prints the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--source", default="")
    parser.add_argument("--target", default="")
    parser.add_argument("--tokens", type=int, default=4096)
    parser.add_argument("--seconds", type=float, default=3.0)
    args = parser.parse_args()
    engines = ["python", *(["tensorflow"] if has_tensorflow() else [])]
    print("| corpus | engine | shapes | padding | target tokens/s |")
    print("|---|---|---|---|---|")

    def row(
        name: str,
        corpus: IdCorpus,
        engine: str,
        sampler: Sampler | None = None,
        *,
        later: bool = False,
    ) -> None:
        plan = BatchPlan(
            corpus.source.lengths, corpus.target.lengths, BatchConfig(tokens=args.tokens)
        )
        skipped = plan.batches_per_epoch if later else 10
        rate = measure(corpus, plan, engine, args.seconds, sampler, skipped)
        padding = f"{plan.padding_fraction():.1%}"
        print(f"| {name} | {engine} | {len(plan.shapes)} | {padding} | {rate:,.0f} |", flush=True)

    if not args.source:
        corpus = synthetic_corpus()
        for engine in engines:
            row("synthetic ids", corpus, engine)
        return
    pairs = list(zip(read(args.source), read(args.target), strict=True))
    joint = train_tokenizers(TokenizerConfig(), pairs)
    plain = ids_of_pairs(pairs, joint)
    for engine in engines:
        row("ids", plain, engine)
    text = ids_of_pairs(pairs, joint, SubwordSampler(joint, ALPHA))
    sampler = SubwordSampler(joint, ALPHA)  # one that has not seen the text
    for later, name in ((False, "first epoch"), (True, "later epochs")):
        row(f"alpha {ALPHA}, {name}", text, "python", sampler, later=later)


if __name__ == "__main__":
    main()
