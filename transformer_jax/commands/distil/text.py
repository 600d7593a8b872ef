"""The text of a distillation: what the teacher translates, and what both are scored on."""

from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

from etils import epath

from transformer_jax.data.config import DataConfig
from transformer_jax.data.filters.review import pairs_used
from transformer_jax.data.sources.base import SPLITS, Pair, Split
from transformer_jax.data.sources.files import Files, read_parallel
from transformer_jax.data.splits import fingerprint, has_split, read_pairs
from transformer_jax.data.tokenizer import SIDES
from transformer_jax.errors import UserError

_LINE_ENDS = str.maketrans("\r\n", "  ")


def one_direction(data: DataConfig) -> DataConfig:
    """The text of `data.languages` alone, as the student translates in one direction.

    Raises:
        UserError: the text is prepared, the student would be trained on blocks, or there is nothing
            to score it on.
    """
    if data.prepared:
        raise UserError(
            "data.prepared: a student is trained on what its teacher writes; name the text to "
            "translate by data.source"
        )
    if data.blocks:
        raise UserError(
            "data.blocks: the teacher translates sentence by sentence; leave it out, or train the "
            "student with `train` on what `translate --documents` wrote"
        )
    direction = data.languages
    if data.corpora:
        own = tuple(each for each in data.parts if each.direction == direction)
        data = replace(data, corpora=own)
    if not any(has_split(data, split) for split in ("validation", "test")):
        raise UserError(
            "no text to compare teacher and student on: give data.source.validation_source and "
            "data.source.validation_target, or data.validation_from_train"
        )
    return data


def hashes(data: DataConfig) -> dict[str, Any]:
    """A hash of each split that `write_text` writes; None where there is none."""
    return {
        f"{split} text": fingerprint(data, split, data.languages)
        if has_split(data, split)
        else None
        for split in SPLITS
    }


def write_text(data: DataConfig, folder: epath.Path) -> None:
    """Writes each split as two files of lines, those to train on without what filters leave out.

    Raises:
        UserError: the text is damaged.
    """
    write_pairs(pairs_used(data), folder, "train")
    write_sets(data, folder)


def write_sets(data: DataConfig, folder: epath.Path) -> None:
    """Writes the validation and the test set, as far as there are."""
    for split in ("validation", "test"):
        if has_split(data, split):
            write_pairs(read_pairs(data, split), folder, split)


def write_pairs(pairs: Iterable[Pair], folder: epath.Path, name: str) -> None:
    """Writes `<name>.source` and `<name>.target`, a sentence a line."""
    source, target = names(folder, name)
    with (
        open(source, "w", encoding="utf-8", newline="\n") as sources,
        open(target, "w", encoding="utf-8", newline="\n") as targets,
    ):
        for pair in pairs:
            for file, sentence in zip((sources, targets), pair, strict=True):
                file.write(sentence.translate(_LINE_ENDS) + "\n")


def names(folder: epath.Path, name: str) -> tuple[str, str]:
    """The two files that `write_pairs` writes."""
    return str(folder / f"{name}.source"), str(folder / f"{name}.target")


def sets_in(folder: epath.Path) -> list[Split]:
    """Which of the validation and the test set were written."""
    return [split for split in SPLITS[1:] if Path(names(folder, split)[0]).exists()]


def scored_sets(folder: epath.Path) -> dict[str, list[Pair]]:
    """The pairs of these sets."""
    return {split: list(read_parallel(*names(folder, split))) for split in sets_in(folder)}


def students_text(data: DataConfig, text: epath.Path, *train: epath.Path) -> DataConfig:
    """Where a student finds its text.

    Args:
        data: of the teacher.
        text: the folder that `write_text` filled.
        train: the folders whose pairs to train on.
    """
    splits = {"train": train} | {split: (text,) for split in sets_in(text)}
    files: dict[str, Any] = {
        f"{split}_{side}": tuple(names(each, split)[number] for each in folders)
        for split, folders in splits.items()
        for number, side in enumerate(SIDES)
    }
    source, target = data.languages
    return DataConfig(
        source=Files(**files),
        source_language=source,
        target_language=target,
        filters=data.filters,
        cache_dir=data.cache_dir,
    )
