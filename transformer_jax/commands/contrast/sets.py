"""Published sets of items in JSON, and the documents that their sentences come from.

ContraPro (Müller et al. 2018, arXiv:1810.02268; github.com/ZurichNLP/ContraPro)
    A list of objects: `src segment`, `ref segment`, and `errors`, each with `contrastive`. The
    category is `src pronoun:ref pronoun`, as in its own evaluation. The documents are a folder of
    OpenSubtitles as its `setup_opensubs.sh` makes it: `document id` is the name of a target file
    in one of its folders, the source is beside it with the ending `.en`, a sentence a line.
ctxpro (Wicks and Post 2023; github.com/rewicks/ctxpro)
    The same keys, but its `errors` are empty: it is made to tell whether a translation has the
    word `expected`. So wrong targets are made here. They have another word in its place, that of a
    rule whose name differs in gender alone: NOM.FEM.SING and NOM.MASC.SING expect "sie" and "er".
    A rule that expects several words gives none. Items for which there is no other word, or whose
    reference has not the expected word exactly once, are left out. The category is the rule. The
    numbers are not comparable with the authors', and words that agree with the expected one
    (adjectives, participles) help the model.
    The sets of other phenomena are refused, as no sound wrong targets can be made of them. A rule
    of `auxiliary` or `inflection` expects hundreds of words. All rules of `animacy` expect the
    same one. In `formality` the verb agrees with the pronoun, and the words are those of other
    persons too ("sie" in the place of "dich"): a model that ignores formality would be right.
    The documents are a file of document TAB source TAB target, as `ctxpro extract` reads it.

In both, `segment id` is the number of the sentence in its document, from 1.
"""

import json
import re
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from transformer_jax.data.contrast import BETWEEN, Item, checked, field
from transformer_jax.data.sources.base import Pair
from transformer_jax.data.sources.files import read_lines, read_parallel
from transformer_jax.errors import UserError

_NO_OTHER = "no rule that differs in gender alone expects another word"
_NOT_ONCE = "the reference has not the expected word exactly once"


class Context(NamedTuple):
    """What comes before the sentences of a set."""

    documents: str  #: the folder or file of its documents
    sentences: int  #: at most so many


def read_set(path: str | Path, context: Context | None = None) -> tuple[list[Item], str]:
    """The items of a `.json` file that can be scored, in order, and what is said of the others.

    Returns:
        At least one item; how many others there are and why, "" if there are none.

    Raises:
        UserError: the file cannot be read or has another form, a document is missing, or its
            sentence is not that of the item; names the item, from 1. Or there is no item that can
            be scored; says why.
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
    wrong_words = _wrong_words(numbered)
    items: list[Item] = []
    skipped = Counter[str]()
    for record, place in numbered:
        segments = [field(record, key, place) for key in ("src segment", "ref segment")]
        source, right = (" ".join(segment.split()) for segment in segments)
        if "expected" in record:
            category = field(record, "rule", place)
            others = wrong_words[category]
            wrong = _with_other_words(right, _expected(record, place), others)
            if not wrong:
                skipped[_NOT_ONCE if others else _NO_OTHER] += 1
                continue
        else:
            pronouns = (field(record, f"{side} pronoun", place) for side in ("src", "ref"))
            category = ":".join(pronouns).lower()
            errors = field(record, "errors", place, list)
            wrong = tuple(field(error, "contrastive", place) for error in errors)
        item = checked(Item(source, right, wrong, category), place)
        if context:
            item = _with_context(item, record, place, documents, context)
        items.append(item)
    reasons = "; ".join(f"{count:,}: {reason}" for reason, count in skipped.items())
    note = f"{skipped.total():,} of {len(records):,} items are left out ({reasons})"
    if not items:
        why = note if skipped else "there are no items"
        raise UserError(f"{path}: {why}; take ContraPro, or a set of ctxpro's gender")
    return items, note if skipped else ""


def _wrong_words(numbered: Sequence[tuple[Any, str]]) -> dict[str, list[str]]:
    """Rule -> the words that are wrong where it holds, those of rules of another gender."""
    expected: dict[str, dict[str, str]] = {}  # rule -> its words, which may differ in case
    for record, place in numbered:
        if isinstance(record, dict) and "expected" in record:
            word = _expected(record, place)
            expected.setdefault(field(record, "rule", place), {})[word.casefold()] = word
    groups: dict[str, dict[str, str]] = {_of_any_gender(rule): {} for rule in expected}
    for rule, words in expected.items():
        if len(words) == 1:
            groups[_of_any_gender(rule)].update(words)
    return {
        rule: [word for key, word in groups[_of_any_gender(rule)].items() if key not in words]
        for rule, words in expected.items()
    }


def _of_any_gender(rule: str) -> str:
    return re.sub(r"^([^.]+)\.(MASC|FEM|NEUT)\b", r"\1.*", rule)


def _expected(record: Any, place: str) -> str:
    word = " ".join(field(record, "expected", place).split())
    if not word:
        raise UserError(f'{place}: an empty "expected": give the word that the rule asks for')
    return word


def _with_other_words(sentence: str, word: str, others: Sequence[str]) -> tuple[str, ...]:
    """The sentence with each other word in the place of the word, if that is there once."""
    found = list(re.finditer(rf"\b{re.escape(word)}\b", sentence, re.IGNORECASE))
    if len(found) != 1:
        return ()
    begin, end = found[0].span()
    in_case = str.upper if sentence[begin].isupper() else str.lower
    return tuple(
        sentence[:begin] + in_case(other[0]) + other[1:] + sentence[end:] for other in others
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
