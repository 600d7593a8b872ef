"""A published set of items in JSON, and the documents that its sentences come from.

ContraPro (Müller et al. 2018, arXiv:1810.02268; github.com/ZurichNLP/ContraPro) is a list of
objects: `src segment`, `ref segment`, and `errors`, each with `contrastive`. The category is
`src pronoun:ref pronoun`, as in its own evaluation. The documents are a folder of OpenSubtitles as
its `setup_opensubs.sh` makes it: `document id` is the name of a target file in one of its folders,
the source is beside it with the ending `.en`, a sentence a line. `segment id` is the number of the
sentence in its document, from 1.
"""

import re
from collections.abc import Collection, Sequence
from pathlib import Path
from typing import Any

from transformer_jax.data.contrast import BETWEEN, Item, checked
from transformer_jax.data.sources.base import Pair
from transformer_jax.data.sources.files import read_lines, read_parallel
from transformer_jax.data.sources.json_lines import json_field, read_json
from transformer_jax.errors import UserError


def read_set(path: str | Path, folder: str | None = None, context: int = 0) -> list[Item]:
    """The items of a `.json` file, at least one.

    Args:
        path: of the file.
        folder: of its documents; None: the items get no context.
        context: most sentences that come before one.

    Raises:
        UserError: the file cannot be read or has another form, a document is missing, or its
            sentence is not that of the item; names the item, from 1.
    """
    records = read_json("\n".join(read_lines(path)), str(path))
    if not isinstance(records, list) or not records:
        raise UserError(f"{path}: expected a list of items, as in ContraPro")
    numbered = [(record, f"{path}, item {number}") for number, record in enumerate(records, 1)]
    ids = {json_field(record, "document id", place) for record, place in numbered} if folder else ()
    documents = _read_documents(folder, ids) if folder else {}
    items: list[Item] = []
    for record, place in numbered:
        segments = [json_field(record, key, place) for key in ("src segment", "ref segment")]
        source, right = (" ".join(segment.split()) for segment in segments)
        category = ":".join(json_field(record, f"{side} pronoun", place) for side in ("src", "ref"))
        errors = json_field(record, "errors", place, list)
        wrong = tuple(json_field(error, "contrastive", place) for error in errors)
        item = checked(Item(source, right, wrong, category.lower()), place)
        if folder:
            if record["document id"] not in documents:
                raise UserError(f"{place}: no document {record['document id']} in {folder}")
            item = _with_context(item, record, place, documents[record["document id"]], context)
        items.append(item)
    return items


def _with_context(item: Item, record: Any, place: str, pairs: Sequence[Pair], context: int) -> Item:
    """The item with the sentences before it in its document, on both sides."""
    name, number = record["document id"], json_field(record, "segment id", place, int)
    there = pairs[number - 1][0] if 0 < number <= len(pairs) else ""
    if _letters(there) != _letters(item.source):
        raise UserError(f"{place}: sentence {number} of {name} is another one: {there[:40]!r}")
    before = pairs[max(0, number - 1 - context) : number - 1]
    source, target = ("".join(pair[side] + BETWEEN for pair in before) for side in (0, 1))
    wrong = tuple(target + text for text in item.wrong)
    return Item(source + item.source, target + item.right, wrong, item.category)


def _letters(text: str) -> str:
    return re.sub(r"\W", "", text)


def _read_documents(path: str, ids: Collection[str]) -> dict[str, list[Pair]]:
    """Those documents that are asked for and are there."""
    targets = [target for target in Path(path).glob("*/*") if target.name in ids]
    return {
        target.name: list(read_parallel(str(target.with_suffix(".en")), str(target)))
        for target in targets
    }
