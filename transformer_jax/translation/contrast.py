"""Contrastive scoring: does a model find the right target more probable than every wrong one?

Sennrich 2017, arXiv:1612.04629; for pronouns in documents Müller et al. 2018, arXiv:1810.02268.
Nothing is translated: what is compared is log p(target | source) of whole targets.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from transformer_jax.data.contrast import BETWEEN, Item
from transformer_jax.errors import UserError
from transformer_jax.translation.translator import Progress, Scored, Translator

#: Items whose texts are ids at the same time.
_CHUNK_ITEMS = 256

#: (sources, targets) -> their log-probabilities.
Scorer = Callable[[Sequence[str], Sequence[str]], Scored]


@dataclass(frozen=True)
class Accuracy:
    """How many items of a category are right."""

    category: str
    right: int
    count: int
    chance: float  #: expected share of one who guesses

    @property
    def share(self) -> float:
        """Of right items, 0 to 1."""
        return self.right / self.count

    @property
    def interval(self) -> tuple[float, float]:
        """The 95 % interval of the share (Wilson 1927)."""
        from scipy.stats import binomtest  # slow to import

        found = binomtest(self.right, self.count).proportion_ci(method="wilson")
        return float(found.low), float(found.high)


@dataclass(frozen=True)
class Contrast:
    """The accuracies of a set."""

    total: Accuracy
    categories: tuple[Accuracy, ...]  #: in the order in which the set has them
    num_cut: int  #: pairs of source and target that were longer than the limit

    def to_json(self) -> dict[str, Any]:
        """Accuracies by category, and the total without one."""

        def row(one: Accuracy) -> dict[str, Any]:
            low, high = one.interval
            bounds = {"accuracy": one.share, "low": low, "high": high, "chance": one.chance}
            return {"right": one.right, "count": one.count} | bounds

        categories = {each.category: row(each) for each in self.categories}
        return row(self.total) | {"num_cut": self.num_cut, "categories": categories}

    def __str__(self) -> str:
        rows = [*self.categories, self.total]
        names = [row.category or "(none)" for row in self.categories] + ["all"]
        width = max(len("category"), *map(len, names))
        lines = [f"{'category':<{width}}   items  accuracy     95 % interval    chance"]
        for name, row in zip(names, rows, strict=True):
            low, high = row.interval
            lines.append(
                f"{name:<{width}} {row.count:7,}   {row.share:6.1%}   {low:6.1%} to {high:6.1%}   "
                f"{row.chance:6.1%}"
            )
        return "\n".join(lines)


def contrast(
    scorer: Scorer, items: Sequence[Item], *, progress: Progress | None = None
) -> Contrast:
    """Scores every target of every item.

    An item is right if the right target has a higher log-probability than each wrong one.

    Args:
        scorer: what scores the pairs, such as `scorer(translator)`.
        items: at least one.
        progress: called with the number of items that were just scored.

    Raises:
        UserError: there are no items.
    """
    if not items:
        raise UserError("nothing to score: there are no items")
    right: list[bool] = []
    num_cut = 0
    for begin in range(0, len(items), _CHUNK_ITEMS):
        chunk = items[begin : begin + _CHUNK_ITEMS]
        pairs = [(item.source, target) for item in chunk for target in item.targets]
        scored = scorer(*zip(*pairs, strict=True))
        num_cut += scored.num_cut
        ends = np.cumsum([len(item.targets) for item in chunk])
        for log_probs in np.split(scored.log_probs, ends[:-1]):
            right.append(bool(log_probs[0] > log_probs[1:].max()))
        if progress:
            progress(len(chunk))
    scored_items = list(zip(items, right, strict=True))
    by_category: dict[str, list[tuple[Item, bool]]] = {}
    for item, is_right in scored_items:
        by_category.setdefault(item.category, []).append((item, is_right))
    accuracies = tuple(_accuracy(name, rows) for name, rows in by_category.items())
    return Contrast(_accuracy("", scored_items), accuracies, num_cut)


def scorer(translator: Translator) -> Scorer:
    """Scores texts with a model, in the direction that its `decode_config` names.

    In texts with context, `BETWEEN` is the model's separator piece. What is returned raises a
    UserError for such a text if the model has no such piece.

    Raises:
        UserError: the model has no tag for a language of the direction.
    """
    tokenizers = translator.pieces().tokenizers
    source, target = tokenizers.source, tokenizers.target

    def score(sources: Sequence[str], targets: Sequence[str]) -> Scored:
        # `score_pairs` puts the target's prefix before ids itself.
        prefix = len(target.prefix)
        return translator.score_pairs(
            [_block(source, text) for text in sources],
            [_block(target, text)[prefix:] for text in targets],
        )

    return score


def _block(tokenizer: Any, text: str) -> list[int]:
    """The ids of a text, in which the separator is between those of two sentences."""
    first, *others = text.split(BETWEEN)
    ids = list(tokenizer.encode(first))
    if others and tokenizer.separator is None:
        raise UserError(
            f"the items have sentences with{BETWEEN}between them, and the model has no such piece: "
            "train one on blocks (data.blocks)"
        )
    for sentence in others:
        ids += [tokenizer.separator, *tokenizer.encode(sentence)]
    return ids


def _accuracy(category: str, scored: Sequence[tuple[Item, bool]]) -> Accuracy:
    guessed = sum(1 / len(item.targets) for item, _ in scored)
    return Accuracy(category, sum(right for _, right in scored), len(scored), guessed / len(scored))
