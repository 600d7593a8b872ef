"""Milliseconds of one sentence at a time, and sentences a second in batches, of engines on a CPU.

    python benchmarks/cpu_engines.py --text=test.en.gz --cores=0,1 \
        float:runs/enpt int8:runs/enpt fxtranslate:enpt-1693087644 \
        "ctranslate2(quantization=int8):runs/quickstart"

Each contestant is an engine and a folder: `float` or `int8` (our decoder with these weights, and a
run folder), an export for CTranslate2 with its options (a run folder), or `fxtranslate` (Firefox's
engine in Rust, and a published model's folder; it takes one sentence at a time). With
`fxtranslate+shortlist` the engine uses the folder's `lex*.bin`. All are greedy. They take turns,
`--rounds` times, on the cores that are named, and the least time of each counts. One table on
stdout.
"""

import argparse
import os
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

Translate = Callable[[Sequence[str]], Any]


def ours(folder: str, weights: str) -> Translate:
    """Our decoder."""
    import transformer_jax as tj

    return tj.open_run(folder).translator(method="greedy", weights=weights).translate


def in_fxtranslate(folder: str, *, shortlist: bool) -> Translate:
    """One sentence after the other."""
    import fxtranslate

    def content(pattern: str) -> bytes:
        (path,) = Path(folder).glob(pattern)
        return path.read_bytes()

    vocabulary = content("vocab*.spm")
    files = [content("model*.bin"), vocabulary, vocabulary, *[content("lex*.bin")] * shortlist]
    engine = fxtranslate.Translator(*files)
    return lambda texts: [engine.translate(text) for text in texts]


def in_ctranslate2(folder: str, format: str, cores: int) -> Translate:
    """CTranslate2 with a thread for each core."""
    import ctranslate2

    import transformer_jax as tj
    from transformer_jax.formats.export import export

    run = tj.open_run(folder)
    path = export(run, format, Path(tempfile.mkdtemp()) / "exported")
    model = ctranslate2.Translator(str(path), intra_threads=cores, inter_threads=1)
    source = run.tokenizers().source

    def translate(texts: Sequence[str]) -> Any:
        pieces = [source.pieces(source.encode(text)) + ["</s>"] for text in texts]
        return model.translate_batch(pieces, beam_size=1, max_batch_size=32)

    return translate


def contestant(name: str, cores: int) -> Translate:
    """Opens what a name on the command line stands for."""
    engine, _, folder = name.partition(":")
    if engine.startswith("fxtranslate"):
        return in_fxtranslate(folder, shortlist=engine.endswith("+shortlist"))
    if engine in ("float", "int8"):
        return ours(folder, engine)
    return in_ctranslate2(folder, engine, cores)


def seconds(translate: Translate, batches: Sequence[Sequence[str]]) -> float:
    """How long some calls take, one after the other."""
    began = time.perf_counter()
    for batch in batches:
        translate(batch)
    return time.perf_counter() - began


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("contestants", nargs="+", metavar="ENGINE:FOLDER")
    parser.add_argument("--text", required=True, help="source sentences, one a line")
    parser.add_argument("--cores", default="0,1", help="those to run on")
    parser.add_argument("--single", type=int, default=30, help="sentences that come alone")
    parser.add_argument("--batched", type=int, default=192, help="sentences in batches of 32")
    parser.add_argument("--rounds", type=int, default=3)
    args = parser.parse_args()
    cores = [int(core) for core in args.cores.split(",")]
    os.sched_setaffinity(0, cores)  # before anything counts them
    os.environ.setdefault("JAX_PLATFORMS", "cpu")
    from transformer_jax.data.sources.files import read_lines

    lines = list(read_lines(args.text))
    alone = [[line] for line in lines[: args.single]]
    text = lines[: args.batched]
    translators = {name: contestant(name, len(cores)) for name in args.contestants}
    least: dict[str, list[float]] = {name: [float("inf")] * 2 for name in translators}
    for translate in translators.values():  # what compiles, compiles now
        seconds(translate, [*alone, text])
    for _ in range(args.rounds):
        for name, translate in translators.items():
            for i, batches in enumerate((alone, [text])):
                least[name][i] = min(least[name][i], seconds(translate, batches))
    print(f"| {len(cores)} cores | ms a sentence, alone | sentences/s, batches of 32 |")
    print("|---|---|---|")
    for name, (single, batched) in least.items():
        shown = f"{1e3 * single / len(alone):.1f} | {len(text) / batched:.1f}"
        print(f"| {name.partition(':')[0]} | {shown} |", flush=True)


if __name__ == "__main__":
    main()
