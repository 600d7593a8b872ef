"""BLEU, size and speed of a teacher and its students in our decoder, CTranslate2 and Bergamot.

    python benchmarks/students.py --source=test.en.gz --reference=test.de.gz \
        ours:runs/multi30k ours:runs/student bergamot:runs/student \
        "bergamot(quantization=int8,sentences=in.en):runs/student" bergamot:runs/student_int8

Each contestant is a runtime and a run folder. The runtime is `ours`, `ours-beam` (the run's own
search; the others are greedy), or an export format with its options. Bergamot's engine is the one
in build/bergamot, which `./run oracles` gets: WebAssembly in node, one thread. CTranslate2 and ours
have one thread too: run it with `taskset -c 0`. Seconds are those of translating all sentences
less those of starting with one. MB is 10^6 bytes, of the exported folder or of our checkpoint's
parameters. One table on stdout; a row is printed when it is measured.
"""

import argparse
import os
import re
import tempfile
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

from bergamot_engine import translate_in_engine

import transformer_jax as tj
from transformer_jax.data.sources.files import read_lines
from transformer_jax.decoding.greedy import Greedy
from transformer_jax.formats.export import export
from transformer_jax.metrics.scores import corpus_scores
from transformer_jax.models.api import num_params

Translate = Callable[[Sequence[str]], list[str]]


def ours(run: tj.Run, *, beam: bool) -> tuple[Translate, int]:
    """Our decoder, and the bytes of the parameters."""
    selection = run.select("best")
    translator = run.translator(selection) if beam else run.translator(selection, method=Greedy())
    return lambda texts: translator.translate(list(texts)), run.num_bytes("best")


def in_ctranslate2(run: tj.Run, folder: Path) -> Translate:
    """CTranslate2 with one thread and batches of 64."""
    import ctranslate2

    model = ctranslate2.Translator(str(folder), intra_threads=1, inter_threads=1)
    source, target = run.tokenizers().source, run.tokenizers().target
    ids = {piece: i for i, piece in enumerate(target.pieces(range(target.vocab_size)))}
    never = [target.pieces([i]) for i in (0, 1)]  # padding and BOS

    def translate(texts: Sequence[str]) -> list[str]:
        pieces = [source.pieces(source.encode(text)) + ["</s>"] for text in texts]
        found = model.translate_batch(
            pieces, beam_size=1, max_batch_size=64, suppress_sequences=never
        )
        return [target.decode([ids[piece] for piece in each.hypotheses[0]]) for each in found]

    return translate


def contestant(runtime: str, run: tj.Run, folder: Path) -> tuple[Translate, int]:
    """How a runtime translates with a run's model, and the bytes that it reads."""
    if runtime in ("ours", "ours-beam"):
        return ours(run, beam=runtime == "ours-beam")
    made = Path(os.fspath(export(run, runtime, folder / "model")))
    size = sum(path.stat().st_size for path in made.iterdir())
    kind = re.match(r"\w+", runtime)
    if kind and kind[0] == "bergamot":
        return partial(translate_in_engine, made), size
    return in_ctranslate2(run, made), size


def main() -> None:
    """Prints the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--source", required=True)
    parser.add_argument("--reference", required=True)
    parser.add_argument("--target_language", default="de")
    parser.add_argument("contestants", nargs="+", metavar="RUNTIME:RUN")
    args = parser.parse_args()
    sources, references = list(read_lines(args.source)), list(read_lines(args.reference))
    columns = ["runtime", "run", "BLEU", "chrF++", "parameters", "MB", "sentences/s"]
    print(f"| {' | '.join(columns)} |\n|{' --- |' * len(columns)}")
    for text in args.contestants:
        runtime, _, name = text.rpartition(":")
        run = tj.open_run(name)
        with tempfile.TemporaryDirectory() as folder:
            translate, size = contestant(runtime, run, Path(folder))
            translate(sources)  # compiles
            seconds = []
            for some in (sources[:1], sources):
                began = time.perf_counter()
                made = translate(some)
                seconds.append(time.perf_counter() - began)
        scores = corpus_scores(made, references, target_language=args.target_language)
        cells = [
            re.sub(r"sentences=[^,)]*", "sentences=...", runtime),
            Path(name).name,
            f"{scores['bleu'].score:.2f}",
            f"{scores['chrf'].score:.2f}",
            f"{num_params(run.model):,}",
            f"{size / 1e6:.2f}",
            f"{len(sources) / (seconds[1] - seconds[0]):.0f}",
        ]
        print(f"| {' | '.join(cells)} |", flush=True)


if __name__ == "__main__":
    main()
