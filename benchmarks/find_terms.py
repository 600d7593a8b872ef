"""Finds word pairs that translate each other in a parallel text: terms to try out terminology with.

    python benchmarks/find_terms.py --source=train.en.gz --target=train.de.gz --output=terms

Words are paired by the Dice coefficient of the sentences they occur in (each the other's best, at
least 0.5, at least five sentences). Every fifth pair goes to OUTPUT.test.tsv, the others to
OUTPUT.train.tsv, so that a model can be asked for terms whose annotation it was not trained on.
"""

import argparse
import re
from collections import Counter
from collections.abc import Iterable
from pathlib import Path

from transformer_jax.data.sources.files import read_lines


def best_pairs(
    pairs: Iterable[tuple[str, str]], least_count: int = 5, least_dice: float = 0.5
) -> list[tuple[str, str]]:
    """Pairs of words that are each other's best by the Dice coefficient, sorted."""
    counts: tuple[Counter[str], Counter[str]] = (Counter(), Counter())
    both: Counter[tuple[str, str]] = Counter()
    for sentences in pairs:
        words = [set(re.findall(r"\w{3,}", sentence)) for sentence in sentences]
        for count, found in zip(counts, words, strict=True):
            count.update(found)
        both.update((source, target) for source in words[0] for target in words[1])
    dice = {
        pair: 2 * n / (counts[0][pair[0]] + counts[1][pair[1]])
        for pair, n in both.items()
        if n >= least_count
    }
    best: tuple[dict[str, str], dict[str, str]] = ({}, {})
    for pair in sorted(dice, key=lambda pair: (dice[pair], pair)):  # the best of a word comes last
        best[0][pair[0]], best[1][pair[1]] = pair[1], pair[0]
    return sorted(
        (source, target)
        for source, target in best[0].items()
        if best[1][target] == source and dice[source, target] >= least_dice
    )


def main() -> None:
    """Writes the two files."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    for name in ("source", "target", "output"):
        parser.add_argument(f"--{name}", required=True)
    arguments = parser.parse_args()
    pairs = zip(read_lines(arguments.source), read_lines(arguments.target), strict=True)
    terms = best_pairs(pairs)
    for part, chosen in (
        ("train", [pair for i, pair in enumerate(terms) if i % 5]),
        ("test", terms[::5]),
    ):
        path = Path(f"{arguments.output}.{part}.tsv")
        path.write_text("".join(f"{source}\t{target}\n" for source, target in chosen), "utf-8")
        print(f"{len(chosen)} terms in {path}")


if __name__ == "__main__":
    main()
