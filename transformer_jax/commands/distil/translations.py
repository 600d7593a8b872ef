"""Translations that come as text: of a large language model, of people, of another program.

Each row has a source, a translation, and maybe a score, of which more is better. The rows of one
source are candidates, wherever they are. The text is read twice and never held: a row is known by a
hash of its source, as tokenizers read it, and 18 bytes in all.
"""

import logging
import unicodedata
from array import array
from collections.abc import Iterable, Iterator
from dataclasses import replace
from hashlib import blake2b
from itertools import islice
from typing import Any, NamedTuple

import numpy as np
from etils import epath

from transformer_jax.commands.distil.text import names, write_pairs, write_sets
from transformer_jax.data.config import DataConfig, TokenizerConfig
from transformer_jax.data.filters.identical import Identical
from transformer_jax.data.filters.lengths import LengthRatio
from transformer_jax.data.filters.script import Script
from transformer_jax.data.sources.base import Languages
from transformer_jax.data.sources.files import read_lines, read_scored
from transformer_jax.data.tokenizer_training import given_tokenizers
from transformer_jax.errors import UserError
from transformer_jax.paths import write_whole

_LOGGER = logging.getLogger(__name__)

#: Source, translation, score.
Row = tuple[str, str, float]

_CHUNK = 10_000  # rows that are judged at a time

#: Why a row is left out, in the order in which it is asked.
REASONS = ("blank", "identical", "over-long", "wrong script", "score too low", "another is better")
_FILTERS = (Identical(), LengthRatio(), Script())


class Chosen(NamedTuple):
    """What becomes of each row."""

    use: np.ndarray  #: 0 left out, 1 trained on, 2 held out
    table: str  #: the counts, in Markdown


def write_text(data: DataConfig, folder: epath.Path, **options: Any) -> None:
    """Writes the rows of the training files as pairs, those held out too, and the other sets.

    Args:
        data: its training files are such rows.
        folder: for `<split>.source`, `<split>.target` and the counts, `translations.md`.
        **options: of `choose`.
    """
    names, languages, num_held_out = data.source.train_source, data.languages, 0  # type: ignore
    if not data.source.has("validation"):
        num_held_out = data.validation_from_train or 0
        data = replace(data, validation_from_train=None)

    def rows() -> Iterator[Row]:
        return (row for name in names for row in read_scored(name, languages))

    use, table = choose(rows(), languages, num_held_out=num_held_out, **options)
    for split, kind in (("train", 1), ("validation", 2)):
        if (use == kind).any():
            found = (row[:2] for row, each in zip(rows(), use, strict=True) if each == kind)
            write_pairs(found, folder, split)
    write_sets(data, folder)
    write_whole(folder / "translations.md", table.encode())
    _LOGGER.info(table)


def choose(
    found: Iterable[Row],
    languages: Languages,
    *,
    most_words: int,
    least: float | None,
    keep_all: bool,
    num_held_out: int,
) -> Chosen:
    """Chooses rows.

    Args:
        found: source, translation and score of each row.
        languages: of the sides.
        most_words: a side with more is over-long, as is one that is much longer than the other.
        least: the lowest score of a translation to use; None: any.
        keep_all: whether all candidates of a source are trained on, or that of the highest score,
            the first of equals.
        num_held_out: so many sources are a validation set, each with the best candidate.

    Raises:
        UserError: there are so few, or most are not in the languages' scripts.
    """
    keys, scores, reasons = array("Q"), array("d"), array("b")
    floor = -np.inf if least is None else least
    found = iter(found)
    while chunk := list(islice(found, _CHUNK)):
        pairs = [row[:2] for row in chunk]
        blank = np.array([not (source.strip() and target.strip()) for source, target in pairs])
        same, uneven, script = (each.marks(pairs, languages) for each in _FILTERS)
        words = np.array([max(len(text.split()) for text in pair) for pair in pairs])
        score = np.array([row[2] for row in chunk])
        marks = np.stack([blank, same, uneven | (words > most_words), script, score < floor])
        reasons.extend(np.where(marks.any(0), marks.argmax(0), -1).tolist())
        scores.extend(score.tolist())
        for source, _ in pairs:
            read = " ".join(unicodedata.normalize("NFKC", source).replace("\ufeff", "").split())
            keys.append(int.from_bytes(blake2b(read.encode(), digest_size=8).digest()))
    reason, key = np.array(reasons), np.array(keys)
    good = np.flatnonzero(reason < 0)
    order = good[np.lexsort((good, -np.array(scores)[good], key[good]))]
    is_best = np.append(True, np.diff(key[order]) != 0)[: len(order)]
    use = np.zeros(len(key), np.int8)
    use[order[is_best | keep_all]] = 1
    held_out = np.unique(key[order])[:num_held_out]  # hashes: drawn by chance, always the same
    is_held_out = np.isin(key, held_out)
    use[is_held_out] = 0
    use[order[is_best & is_held_out[order]]] = 2
    reason[order[~(is_best | (keep_all & ~is_held_out[order]))]] = len(REASONS) - 1
    counts = {why: int((reason == number).sum()) for number, why in enumerate(REASONS)}
    counts |= {"held out": int((use == 2).sum()), "trained on": int((use == 1).sum())}
    table = "| rows | |\n| --- | ---: |\n"
    table += "".join(f"| {name} | {count:,} |\n" for name, count in counts.items())
    if counts["wrong script"] > len(key) / 2:
        raise UserError(
            f"--translations: {counts['wrong script']:,} of {len(key):,} rows are not in the "
            f"scripts of {languages[0]} and {languages[1]}: are the columns in another order, or "
            "the languages others?"
        )
    if not counts["trained on"]:
        listed = ", ".join(f"{name} {count:,}" for name, count in counts.items() if count)
        raise UserError(f"--translations: no row is left to train on: {listed}")
    return Chosen(use, table)


def check_alphabet(config: TokenizerConfig, folder: epath.Path) -> None:
    """Refuses given tokenizers that do not know the characters of the text.

    Raises:
        UserError: names the tokenizer and the file.
    """
    for path, tokenizer in zip(names(folder, "train"), given_tokenizers(config), strict=True):
        if tokenizer is None:
            continue
        ids = tokenizer.encode_batch(list(islice(read_lines(path), 1000)))
        pieces = tokenizer.pieces([i for each in ids for i in each])
        # A character that it does not know is one piece, or its bytes are.
        unknown = sum(piece.startswith(("<unk>", "<0x")) for piece in pieces)
        if 3 * unknown > len(pieces):
            raise UserError(
                f"{tokenizer.name} does not know the alphabet of {path}: {unknown:,} of "
                f"{len(pieces):,} pieces are unknown; leave tokenizer.source_model out"
            )
