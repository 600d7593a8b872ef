"""Sentences per second of a trained run, by decoding method.

    python benchmarks/decoding_speed.py --workdir=runs/multi30k --source=FILE [--batch_size=32]

Each method translates the file twice. The speed is that of the second pass. The first includes
compilation; its time is printed too.
"""

import argparse

import transformer_jax as tj
from transformer_jax.cli.host_memory import keep_freed_memory
from transformer_jax.data.sources.files import read_lines

METHODS = {
    "greedy": tj.Greedy(),
    "beam 4": tj.Beam(beam_size=4),
    "beam 5": tj.Beam(beam_size=5),
}


def main() -> None:
    """Translates with each method and prints the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--workdir", required=True)
    parser.add_argument("--source", required=True)
    parser.add_argument("--batch_size", type=int, default=32)
    arguments = parser.parse_args()
    keep_freed_memory()
    lines = list(read_lines(arguments.source))
    translator = tj.open_run(arguments.workdir).translator(batch_size=arguments.batch_size)
    print(f"{len(lines)} sentences, batches of {arguments.batch_size}")
    print("| method | sentences/s | first pass, with compilation, s |")
    print("| --- | --- | --- |")
    for name, method in METHODS.items():
        first, second = (translator.decode(lines, method=method) for _ in range(2))
        print(f"| {name} | {len(lines) / second.seconds:.1f} | {first.seconds:.1f} |")


if __name__ == "__main__":
    main()
