"""Sentences per second of a trained run, by decoding method; also beside CTranslate2.

    python benchmarks/decoding_speed.py --workdir=runs/multi30k [--source=FILE] [--batch_size=32]
        [--against=ctranslate2] [--turns=3]

Translates the lines of the file, or the run's test set: text in, text out, tokenisation included.
Each method does so once, which includes compilation, and then `--turns` times; the fastest turn
counts. With `--against` the run is exported to CTranslate2 in float32 and translates the same text
with the same method, batch size and number of threads, in turns with ours. CTranslate2 runs twice:
with all threads for one batch, and with a batch for each thread, as ours does on a CPU. The ratio
is to the faster one.
"""

import argparse
import os
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import transformer_jax as tj
from transformer_jax.commands.host_memory import keep_freed_memory
from transformer_jax.data.sources.files import read_lines
from transformer_jax.data.splits import read_pairs

# With CTranslate2's length penalty. With patience 1 both search in the same way; without it, ours
# ends when no better translation can come.
METHODS = {
    "greedy": tj.Greedy(),
    "beam 4": tj.Beam(beam_size=4, length_penalty_form="power"),
    "beam 4, patience 1": tj.Beam(beam_size=4, length_penalty_form="power", patience=1.0),
    "beam 5": tj.Beam(beam_size=5, length_penalty_form="power"),
    "beam 5, patience 1": tj.Beam(beam_size=5, length_penalty_form="power", patience=1.0),
}

Translate = Callable[[list[str], tj.Greedy | tj.Beam], list[str]]


def in_ctranslate2(run: tj.Run, batch_size: int, *, batches: int) -> Translate:
    """Translates with an export of the run, so many batches at a time."""
    import ctranslate2

    with tempfile.TemporaryDirectory() as folder:
        tj.export(run, "ctranslate2", Path(folder) / "model")
        model = ctranslate2.Translator(
            str(Path(folder) / "model"),
            compute_type="float32",
            inter_threads=batches,
            intra_threads=len(os.sched_getaffinity(0)) // batches,
        )
    tokenizers = run.tokenizers()
    source, target = tokenizers.source, tokenizers.target
    ids = {piece: i for i, piece in enumerate(target.pieces(range(target.vocab_size)))}

    def translate(lines: list[str], method: tj.Greedy | tj.Beam) -> list[str]:
        results = model.translate_batch(
            [source.pieces(source.encode(line)) for line in lines],
            max_batch_size=batch_size,
            beam_size=method.num_hypotheses,
            length_penalty=method.length_penalty,
        )
        return [target.decode([ids[piece] for piece in each.hypotheses[0]]) for each in results]

    return translate


def seconds_of(translate: Callable[[], list[str]]) -> tuple[float, list[str]]:
    """Wall time, and the translations."""
    time.sleep(1)  # OpenMP threads of the other contender spin for a moment after its turn
    began = time.perf_counter()
    translations = translate()
    return time.perf_counter() - began, translations


def main() -> None:
    """Translates with each method and prints the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--workdir", required=True)
    parser.add_argument("--source", help="default: the run's test set")
    parser.add_argument("--batch_size", type=int, default=32)
    parser.add_argument("--against", choices=["ctranslate2"])
    parser.add_argument("--turns", type=int, default=3)
    arguments = parser.parse_args()
    keep_freed_memory()
    run = tj.open_run(arguments.workdir)
    if arguments.source:
        lines = list(read_lines(arguments.source))
    else:
        lines = [source for source, _ in read_pairs(run.config.data, "test")]
    translator = run.translator(batch_size=arguments.batch_size)
    contenders: dict[str, Translate] = {
        "ours": lambda lines, method: translator.translate(lines, method=method)
    }
    if arguments.against:
        cores = len(os.sched_getaffinity(0))
        for batches in sorted({1, cores}):
            name = f"{arguments.against}, batches at a time: {batches}"
            contenders[name] = in_ctranslate2(run, arguments.batch_size, batches=batches)
    print(f"{len(lines)} sentences, batches of {arguments.batch_size}; sentences/s")
    columns = ["method", *contenders, "first pass, s"]
    columns += ["ratio", "the same"] if arguments.against else []
    print("| " + " | ".join(columns) + " |")
    print("| " + " | ".join("---" for _ in columns) + " |")
    for name, method in METHODS.items():
        first, ours = seconds_of(lambda: translator.translate(lines, method=method))  # noqa: B023
        times: dict[str, list[float]] = {each: [] for each in contenders}
        theirs = ours
        for _ in range(arguments.turns):
            for each, translate in contenders.items():
                seconds, theirs = seconds_of(lambda: translate(lines, method))  # noqa: B023
                times[each].append(seconds)
        speeds = {each: len(lines) / min(measured) for each, measured in times.items()}
        cells = [name, *(f"{speed:.1f}" for speed in speeds.values()), f"{first:.1f}"]
        if arguments.against:
            same = sum(a == b for a, b in zip(ours, theirs, strict=True))
            best = max(speed for each, speed in speeds.items() if each != "ours")
            cells += [f"{speeds['ours'] / best:.2f}", f"{same}/{len(lines)}"]
        print("| " + " | ".join(cells) + " |", flush=True)


if __name__ == "__main__":
    main()
