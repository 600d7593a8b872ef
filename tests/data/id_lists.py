"""Lists of ids as a corpus, without a text and a tokenizer."""

from collections.abc import Sequence

import numpy as np

from transformer_jax.data.sentences import IdCorpus, Sentences, flat


def corpus_of_lists(source: Sequence[Sequence[int]], target: Sequence[Sequence[int]]) -> IdCorpus:
    """Pairs of such sentences, without BOS and EOS."""
    sides = []
    for sentences in (source, target):
        ids, lengths = flat(sentences, np.int32)
        sides.append(Sentences({"ids": ids, "offsets": np.append(0, np.cumsum(lengths))}))
    return IdCorpus(sides[0], sides[1], (len(source),))
