"""Items that tell whether a model finds the right word: a source, its right target, wrong ones.

A source or a target with context is one text: the sentences of a document with `BETWEEN` between
them.

Files are read by the end of their names; each may be packed (`.tsv.gz`):

`.tsv`
    source TAB right target TAB wrong target, and, if wanted, TAB category.
`.jsonl`
    an object a line: `source`, `right`, `wrong` (a text or a list), and, if wanted, `category`.
`.json`
    a published set, see `contrastive_sets.py`.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from transformer_jax.data.sources.files import read_lines, split_tabs
from transformer_jax.data.sources.json_lines import (
    json_field,
    read_json,
    refuse_half_characters,
)
from transformer_jax.data.sources.packed import suffix
from transformer_jax.data.tokenizer import SEPARATOR
from transformer_jax.errors import UserError

#: What is between two sentences of a document in the texts of items.
BETWEEN = f" {SEPARATOR} "


class Item(NamedTuple):
    """A source with a right target and wrong ones, which differ from it in what is tested."""

    source: str
    right: str
    wrong: tuple[str, ...]  #: at least one
    category: str = ""

    @property
    def targets(self) -> tuple[str, ...]:
        """The right one, then the others."""
        return self.right, *self.wrong


def read_items(path: str | Path) -> Iterator[Item]:
    """The items of a `.tsv` or `.jsonl` file, in order.

    Raises:
        UserError: the file cannot be read, or a line is no item; names the line.
    """
    lines, kind = read_lines(path), suffix(path)
    if kind == ".tsv":
        form = "source TAB right TAB wrong, and perhaps TAB category"
        rows = split_tabs(lines, path, form, last_may_lack=True)
        items = (Item(source, right, (wrong,), *more) for source, right, wrong, *more in rows)
    elif kind == ".jsonl":
        items = (_of_json(line, f"{path}:{i}") for i, line in enumerate(lines, start=1))
    else:
        raise UserError(f"{path}: expected a name that ends in .tsv, .jsonl or .json")
    for number, item in enumerate(items, start=1):
        yield checked(item, f"{path}:{number}")


def checked(item: Item, place: str) -> Item:
    """The item itself.

    Raises:
        UserError: a text is empty or holds half of a character, or no target is wrong; begins
            with the place.
    """
    for name, text in (("source", item.source), *(("target", text) for text in item.targets)):
        if not text.strip():
            raise UserError(f"{place}: an empty {name}")
        refuse_half_characters(text, f"{place}: the {name}")
    refuse_half_characters(item.category, f"{place}: the category")
    if not item.wrong or item.right in item.wrong:
        what = "is the right one" if item.wrong else "is missing"
        raise UserError(f"{place}: a wrong target {what}; an item needs one that differs")
    return item


def _of_json(line: str, place: str) -> Item:
    record = read_json(line, place)
    wrong = json_field(record, "wrong", place, str | list)
    texts = [wrong] if isinstance(wrong, str) else wrong
    if not all(isinstance(text, str) for text in texts):
        raise UserError(f'{place}: "wrong" must be a text or a list of texts')
    category = json_field(record, "category", place) if "category" in record else ""
    source, right = (json_field(record, key, place) for key in ("source", "right"))
    return Item(source, right, tuple(texts), category)
