"""Published sets of items in JSON, and the documents that their sentences come from.

ContraPro (Müller et al. 2018, arXiv:1810.02268; github.com/ZurichNLP/ContraPro)
    A list of objects: `src segment`, `ref segment`, and `errors`, each with `contrastive`. The
    category is `src pronoun:ref pronoun`, as in its own evaluation. The documents are a folder of
    OpenSubtitles as its `setup_opensubs.sh` makes it: `document id` is the name of a target file
    in one of its folders, the source is beside it with the ending `.en`, a sentence a line.
ctxpro (Wicks and Post 2023; github.com/rewicks/ctxpro)
    The same keys, but its `errors` are empty: it is made to tell whether a translation has the
    word `expected`. So wrong targets are made here. They have another word in its place, which
    the set expects by a rule whose name differs in one part: NOM.FEM.SING and NOM.MASC.SING give
    "sie" and "er". Items are left out if the reference has not the word exactly once, or if there
    is no such rule. The category is the rule. The numbers are not comparable with the authors'.
    The documents are a file of document TAB source TAB target, as `ctxpro extract` reads it.

In both, `segment id` is the number of the sentence in its document, from 1.
"""

import json
import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from transformer_jax.data.contrast import BETWEEN, Item, checked, field
from transformer_jax.data.sources.base import Pair
from transformer_jax.data.sources.files import read_lines, read_parallel
from transformer_jax.errors import UserError


class Context(NamedTuple):
    """What comes before the sentences of a set."""

    documents: str  #: the folder or file of its documents
    sentences: int  #: at most so many


def read_set(path: str | Path, context: Context | None = None) -> Iterator[Item]:
    """The items of a `.json` file, in order.

    Raises:
        UserError: the file cannot be read or has another form, a document is missing, or its
            sentence is not that of the item; names the item, from 1.
    """
    try:
        records = json.loads("\n".join(read_lines(path)))
    except (ValueError, RecursionError) as error:
        raise UserError(f"{path}: not JSON ({error})") from None
    if not isinstance(records, list):
        raise UserError(f"{path}: expected a list of items, as in ContraPro and ctxpro")
    places = [f"{path}, item {number}" for number in range(1, len(records) + 1)]
    numbered = list(zip(records, places, strict=True))
    ids = {field(record, "document id", place) for record, place in numbered} if context else ()
    documents = _read_documents(context.documents, ids) if context else {}
    forms = _forms_of_rules(numbered)
    for record, place in numbered:
        segments = [field(record, key, place) for key in ("src segment", "ref segment")]
        source, right = (" ".join(segment.split()) for segment in segments)
        if "expected" in record:
            category = field(record, "rule", place)
            wrong = _with_other_words(right, _expected(record, place), forms[category])
            if not wrong:
                continue
        else:
            pronouns = (field(record, f"{side} pronoun", place) for side in ("src", "ref"))
            category = ":".join(pronouns).lower()
            errors = field(record, "errors", place, list)
            wrong = tuple(field(error, "contrastive", place) for error in errors)
        item = checked(Item(source, right, wrong, category), place)
        if context:
            item = _with_context(item, record, place, documents, context)
        yield item


def _forms_of_rules(numbered: Sequence[tuple[Any, str]]) -> dict[str, list[str]]:
    """Rule -> the words that are wrong where it holds, those of the rules that differ in a part."""
    expected = {
        field(record, "rule", place): _expected(record, place)
        for record, place in numbered
        if isinstance(record, dict) and "expected" in record
    }
    forms: dict[str, list[str]] = {}
    for rule, right in expected.items():
        parts = rule.split(".")
        others = (
            word
            for other, word in expected.items()
            if len(other.split(".")) == len(parts)
            and sum(a != b for a, b in zip(parts, other.split("."), strict=True)) == 1
        )
        forms[rule] = list(dict.fromkeys(word for word in others if word != right))
    return forms


def _expected(record: Any, place: str) -> str:
    word = " ".join(field(record, "expected", place).split())
    if not word:
        raise UserError(f'{place}: an empty "expected": give the word that the rule asks for')
    return word


def _with_other_words(sentence: str, word: str, others: Sequence[str]) -> tuple[str, ...]:
    """The sentence with each other word in the place of the word, if it is there once."""
    found = list(re.finditer(rf"\b{re.escape(word)}\b", sentence, re.IGNORECASE))
    if len(found) != 1:
        return ()
    begin, end = found[0].span()
    upper = sentence[begin].isupper()
    return tuple(
        sentence[:begin] + (other[0].upper() + other[1:] if upper else other) + sentence[end:]
        for other in others
    )


def _with_context(
    item: Item, record: Any, place: str, documents: Mapping[str, list[Pair]], context: Context
) -> Item:
    """The item with the sentences before it on both sides."""
    name, number = record["document id"], field(record, "segment id", place, int)
    if name not in documents:
        raise UserError(f"{place}: no document {name} in {context.documents}")
    pairs = documents[name]
    there = pairs[number - 1][0] if 0 < number <= len(pairs) else ""
    if _letters(there) != _letters(item.source):
        raise UserError(f"{place}: sentence {number} of {name} is another one: {there[:40]!r}")
    before = pairs[max(0, number - 1 - context.sentences) : number - 1]
    source, target = ("".join(pair[side] + BETWEEN for pair in before) for side in (0, 1))
    wrong = tuple(target + text for text in item.wrong)
    return Item(source + item.source, target + item.right, wrong, item.category)


def _letters(text: str) -> str:
    return re.sub(r"\W", "", text)


def _read_documents(path: str, ids: Collection[str]) -> dict[str, list[Pair]]:
    """Those documents that are asked for and are there."""
    documents: dict[str, list[Pair]] = {}
    if Path(path).is_dir():
        for target in Path(path).glob("*/*"):
            if target.name in ids:
                pairs = read_parallel(str(target.with_suffix(".en")), str(target))
                documents[target.name] = list(pairs)
        return documents
    for number, line in enumerate(read_lines(path), start=1):
        columns = line.split("\t")
        if len(columns) != 3:
            raise UserError(
                f"{path}:{number}: expected document TAB source TAB target, "
                f"got {len(columns)} columns"
            )
        if columns[0] in ids:
            documents.setdefault(columns[0], []).append((columns[1], columns[2]))
    return documents
