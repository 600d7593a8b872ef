"""How many short sentences the quickstart's model translates exactly.

    python benchmarks/short_sentences.py --workdir=runs/quickstart

500 sentences of 2 to 5 words, as many of each short pattern of the embedded corpus. None is in the
training text, and each has one right translation.
"""

import argparse
import itertools
from collections import Counter

import transformer_jax as tj
from transformer_jax.data.sources.grammar.patterns import SHORT_PATTERNS
from transformer_jax.data.sources.grammar.sentences import distinct, sentences, split_pairs


def new_pairs(count, seed=1):
    """(name of the pattern, English, German), `count` of each pattern."""
    known = {english for english, _ in split_pairs("train")}
    for pattern in SHORT_PATTERNS:
        pairs = distinct(sentences(seed, (pattern,)))
        new = (pair for pair in pairs if pair[0] not in known and len(pair[0].split()) <= 5)
        for english, german in itertools.islice(new, count):
            yield pattern.__name__, english, german


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--workdir", default="runs/quickstart")
    parser.add_argument("--count", type=int, default=500)
    args = parser.parse_args()
    rows = list(new_pairs(args.count // len(SHORT_PATTERNS)))
    found = tj.open_run(args.workdir).translator().translate([english for _, english, _ in rows])
    right = Counter()
    for (name, english, german), translation in zip(rows, found, strict=True):
        right[name] += translation == german
        if translation != german:
            print(f"{english}  {translation}  ({german})")
    each = len(rows) // len(SHORT_PATTERNS)
    for pattern in SHORT_PATTERNS:
        print(f"{pattern.__name__}: {right[pattern.__name__]} of {each}")
    print(f"exact: {right.total()} of {len(rows)}, {right.total() / len(rows):.1%}")


if __name__ == "__main__":
    main()
