"""How many short sentences the quickstart's model translates exactly.

    python benchmarks/short_sentences.py --workdir=runs/quickstart

1,000 sentences of 2 to 5 words, in turn of each kind of sentence and word of the embedded corpus,
held out of its training text; the 500 short ones of an older recipe; and the test set. Each has one
right translation. Searched as the run does and greedily.
"""

import argparse
import re
from collections import Counter
from itertools import cycle, islice
from pathlib import Path

import transformer_jax as tj
from transformer_jax.data.sources.grammar.sentences import (
    distinct,
    is_held_out,
    sentences,
    split_pairs,
)
from transformer_jax.data.sources.grammar.shortest import SHORTEST_PATTERNS

OLD = Path(__file__).parents[1] / "tests" / "data" / "quickstart_pairs.tsv"


def new_pairs(count, seed=1):
    """Pairs that no training text has: one after the other of each kind of sentence and word."""
    cells = {(each.func, str(each.args)): each for each in SHORTEST_PATTERNS}.values()
    streams = [distinct(sentences(seed, [each])) for each in cells]
    held_out = [(pair for pair in stream if is_held_out(pair[0])) for stream in streams]
    return list(islice(distinct(next(stream) for stream in cycle(held_out)), count))


def old_pairs():
    """(those of the test set, short ones)"""
    pairs = [tuple(line.split("\t")) for line in OLD.read_text(encoding="utf-8").splitlines()]
    return pairs[:500], pairs[500:]


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--workdir", default="runs/quickstart")
    args = parser.parse_args()
    run = tj.open_run(args.workdir)
    known = {word for _, german in split_pairs("train") for word in re.findall(r"\w+", german)}
    test, short = old_pairs()
    for search, options in (("", {}), (", greedily", {"method": tj.Greedy()})):
        translator = run.translator(**options)
        for name, pairs in (("new", new_pairs(1000)), ("short", short), ("test set", test)):
            found = translator.translate([english for english, _ in pairs])
            wrong = [
                (*pair, made) for pair, made in zip(pairs, found, strict=True) if made != pair[1]
            ]
            for english, german, made in wrong:
                print(f"{english}  {made}  ({german})")
            words = Counter(word for made in found for word in re.findall(r"\w+", made))
            print(
                f"{name}{search}: {len(pairs) - len(wrong)} of {len(pairs)} exactly; not words of "
                f"the corpus: {', '.join(words.keys() - known) or 'none'}"
            )


if __name__ == "__main__":
    main()
