"""How often `translate --alignments` is wrong where the embedded corpus knows the right link.

    python benchmarks/alignment_error.py --workdir=runs/quickstart

In the corpus every English noun and adjective has one German word, and the other way round. So
where such a word is in a sentence once on each side, the two are a sure link. Only these words are
looked at, of the 500 test sentences with their references. Each target word has one link, so the
alignment error rate (Och and Ney 2003), 1 - 2 |A and S| / (|A| + |S|), is the share of wrong links.
"""

import argparse
import functools
import json
import re

import transformer_jax as tj
from transformer_jax.data.sources.grammar.lexicon import WORDS
from transformer_jax.data.sources.grammar.sentences import split_pairs


@functools.cache
def lexicon() -> tuple[dict[str, int], dict[str, int]]:
    """English and German: each form of a noun or an adjective -> the number of its word."""
    english, german = {}, {}
    nouns = sorted({noun for group in WORDS.nouns.values() for noun in group})
    for number, noun in enumerate(nouns):
        english |= dict.fromkeys((noun.english, noun.english_plural), number)
        for case in ("nominative", "accusative", "dative"):
            german |= {noun.in_german(case, several=several): number for several in (False, True)}
    for number, (name, (predicate, stem)) in enumerate(WORDS.adjectives.items(), len(nouns)):
        english[name] = german[predicate] = number
        german |= {stem + ending: number for ending in ("e", "em", "en", "er", "es")}
    return english, german


def sure_links(english: str, german: str) -> list[tuple[int, int]]:
    """(English word, German word) of the words that are there once on each side."""
    sides = []
    for text, known in zip((english, german), lexicon(), strict=True):
        first, *others = (re.sub(r"\W+$", "", word) for word in text.split())
        numbers = [known.get(first, known.get(first.lower()))]
        sides.append(numbers + [known.get(word) for word in others])
    return [
        (sides[0].index(number), place)
        for place, number in enumerate(sides[1])
        if number is not None and all(side.count(number) == 1 for side in sides)
    ]


def of_run(workdir):
    """(sure links, the share that the run's alignments of the test set have wrong)."""
    run = tj.open_run(workdir)
    pairs = split_pairs("test")
    from_english = run.config.data.languages == ("en", "de")
    sides = (
        zip(*pairs, strict=True) if from_english else zip(*(p[::-1] for p in pairs), strict=True)
    )
    sure = right = 0
    for pair, links in zip(pairs, run.translator().align(*sides), strict=True):
        expected = set(sure_links(*pair))
        sure += len(expected)
        right += len(expected & {link if from_english else link[::-1] for link in links})
    return sure, 1 - right / sure


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--workdir", default="runs/quickstart")
    sure, error = of_run(parser.parse_args().workdir)
    print(json.dumps({"sure_links": sure, "alignment_error_rate": round(error, 4)}))


if __name__ == "__main__":
    main()
