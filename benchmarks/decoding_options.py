"""BLEU, chrF++ and seconds of the decoding options on a run's test set, as a table.

    python benchmarks/decoding_options.py --workdir=runs/multi30k
        [--other=runs/multi30k_seed1 ...] [--only=TEXT]

Each row is the run's own decoding with the options named. --other adds rows for ensembles with
these runs. The seconds are those of a second pass, without compilation.
"""

import argparse
from typing import Any

import transformer_jax as tj
from transformer_jax.commands.host_memory import keep_freed_memory
from transformer_jax.data.splits import read_pairs
from transformer_jax.translation.scores import corpus_scores

SAMPLES = "sample(num_samples=64, epsilon=0.02)"

OPTIONS: dict[str, dict[str, Any]] = {
    "greedy": {"method": tj.Greedy()},
    "beam 5": {"method": tj.Beam(5)},
    "beam 5, patience 1": {"method": tj.Beam(5, patience=1.0)},
    "beam 5, length^0.6": {"method": tj.Beam(5, 0.6, "power")},
    "beam 5, length^1": {"method": tj.Beam(5, 1.0, "power")},
    "beam 5, no 3-gram twice": {"method": tj.Beam(5), "no_repeat_ngram": 3},
    "beam 5, repetition penalty 1.1": {"method": tj.Beam(5), "repetition_penalty": 1.1},
    "one sample": {"method": tj.Sample()},
    "one sample, epsilon 0.02": {"method": tj.Sample(epsilon=0.02)},
    "64 samples, MBR pairwise": {"method": SAMPLES, "mbr": "pairwise"},
    "64 samples, MBR aggregate": {"method": SAMPLES, "mbr": "aggregate"},
    "beam 5, MBR pairwise": {"method": tj.Beam(5), "mbr": "pairwise"},
}


def main() -> None:
    """Translates with each option and prints the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--workdir", required=True)
    parser.add_argument("--other", action="append", default=[], help="a run to ensemble with")
    parser.add_argument("--only", default="", help="only the rows whose name contains this")
    arguments = parser.parse_args()
    keep_freed_memory()
    run = tj.open_run(arguments.workdir)
    sources, references = zip(*read_pairs(run.config.data, "test"), strict=True)

    def row(name: str, translator: tj.Translator, **overrides: Any) -> None:
        if arguments.only not in name:
            return
        translator.decode(sources, num_best=1, **overrides)
        decoded = translator.decode(sources, num_best=1, **overrides)
        texts = [found[0].text for found in decoded.translations]
        scores = corpus_scores(texts, references, also=["bleu_lc"])
        cells = [f"{score.score:.2f}" for score in scores.values()]
        print(f"| {name} | {' | '.join(cells)} | {decoded.timing.seconds:.1f} |", flush=True)

    heads = ["options", "BLEU", "BLEU-lc", "chrF++", "s"]
    print(f"| {' | '.join(heads)} |\n|{' --- |' * len(heads)}")
    translator = run.translator()
    for name, overrides in OPTIONS.items():
        row(name, translator, **overrides)
    for mean in ("log_probs", "probs") if arguments.other else ():
        together = tj.open_ensemble([arguments.workdir, *arguments.other], mean=mean)
        row(f"beam 5, ensemble of {mean}", together.translator(), method=tj.Beam(5))


if __name__ == "__main__":
    main()
