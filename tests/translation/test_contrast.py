"""Contrastive accuracy: on a scorer made by hand, and on a model that copies."""

import json
from types import SimpleNamespace

import numpy as np
import pytest

from tests.translation.conftest import VOCAB_SIZE, LetterTokenizer
from transformer_jax.data.contrast import Item
from transformer_jax.errors import UserError
from transformer_jax.translation import contrast as module
from transformer_jax.translation.contrast import Accuracy, contrast, scorer
from transformer_jax.translation.translator import Scored


def table_scorer(table, calls=None):
    """A scorer that looks each (source, target) up in a table."""

    def score(sources, targets):
        if calls is not None:
            calls.append(len(sources))
        values = [table[pair] for pair in zip(sources, targets, strict=True)]
        return Scored(np.array(values, np.float32), np.ones(len(values), np.int32), 1)

    return score


TABLE = {
    ("s", "best"): -1.0,
    ("s", "same"): -1.0,
    ("s", "good"): -2.0,
    ("s", "bad"): -3.0,
    ("other", "best"): -9.0,
    ("other", "bad"): -8.0,
}
ITEMS = [
    Item("s", "best", ("good", "bad"), "x"),
    Item("s", "good", ("bad",), "y"),
    Item("s", "best", ("bad", "same"), "x"),  # a tie is not right
    Item("s", "good", ("bad", "best"), "x"),  # a later wrong one is better
    Item("other", "best", ("bad",), "y"),
]


def test_an_item_is_right_if_its_right_target_is_the_most_probable() -> None:
    result = contrast(table_scorer(TABLE), ITEMS)
    assert [(row.category, row.right, row.count) for row in result.categories] == [
        ("x", 1, 3),
        ("y", 1, 2),
    ]
    assert [row.chance for row in result.categories] == pytest.approx([1 / 3, 1 / 2])
    assert (result.total.right, result.total.count) == (2, 5)
    assert result.total.chance == pytest.approx((3 / 3 + 2 / 2) / 5)


def test_chunks_change_nothing(monkeypatch) -> None:
    whole, calls, done = contrast(table_scorer(TABLE), ITEMS), [], []
    monkeypatch.setattr(module, "_CHUNK_ITEMS", 2)
    in_parts = contrast(table_scorer(TABLE, calls), ITEMS, progress=done.append)
    assert in_parts.categories == whole.categories
    assert calls == [5, 6, 2]
    assert done == [2, 2, 1]
    assert (whole.num_cut, in_parts.num_cut) == (1, 3)


def test_no_items_are_an_error() -> None:
    with pytest.raises(UserError, match="no items"):
        contrast(table_scorer(TABLE), [])


@pytest.mark.parametrize("right", [0, 1, 37, 99, 100])
def test_the_interval_is_where_the_normal_test_does_not_reject(right: int) -> None:
    """Wilson's: the shares p0 with |p - p0| <= 1.96 sqrt(p0 (1 - p0) / n)."""
    grid = np.linspace(0, 1, 200_001)
    kept = grid[np.abs(right / 100 - grid) <= 1.959964 * np.sqrt(grid * (1 - grid) / 100)]
    low, high = Accuracy("", right, 100, 0.5).interval
    assert (low, high) == pytest.approx((kept.min(), kept.max()), abs=1e-4)


def test_the_table_and_the_json_have_every_category() -> None:
    result = contrast(table_scorer(TABLE), [*ITEMS, Item("s", "best", ("bad",))])
    names = [line.split()[0] for line in str(result).splitlines()]
    assert names == ["category", "x", "y", "(none)", "all"]
    written = json.loads(json.dumps(result.to_json()))
    assert list(written["categories"]) == ["x", "y", ""]
    assert written["count"] == 6 and written["right"] == 3
    row = written["categories"]["x"]
    assert row["accuracy"] == pytest.approx(1 / 3)
    assert row["low"] < row["accuracy"] < row["high"]


def test_the_parts_of_a_text_are_joined_by_the_separator(make_translator) -> None:
    translator = make_translator(sharpness=1.0)
    separator = translator.tokenizers.source.separator = VOCAB_SIZE - 1
    found = scorer(translator)(["ab <sep> c", "d"], ["ef <sep> g <sep> h", "i"]).log_probs
    sources, targets = [[4, 5, separator, 6], [7]], [[8, 9, separator, 10, separator, 11], [12]]
    np.testing.assert_allclose(found, translator.score(sources, targets), rtol=1e-6)


def test_context_needs_a_model_that_knows_the_separator(make_translator) -> None:
    translator = make_translator()
    translator.tokenizers.source.separator = None
    with pytest.raises(UserError, match="the model has no such piece: train one on blocks"):
        contrast(scorer(translator), [Item("a <sep> b", "a", ("b",))])


def test_what_all_targets_begin_with_is_before_them_once(make_translator) -> None:
    class Tagged(LetterTokenizer):
        prefix = (5,)

        def encode(self, text):
            return [*self.prefix, *super().encode(text)]

    translator = make_translator(sharpness=1.0)
    translator.tokenizers = SimpleNamespace(source=LetterTokenizer(), target=Tagged())
    texts = ["ab", "cd"], ["abc", "cd"]
    found = scorer(translator)(*texts).log_probs
    np.testing.assert_allclose(found, translator.score(*texts), rtol=1e-6)
