"""The sentence pairs of a `DataConfig`, wherever they come from."""

import dataclasses
import hashlib
import os
import re
from collections import deque
from collections.abc import Iterator
from typing import Any, Literal

from transformer_jax.data.config import DataConfig
from transformer_jax.data.text_files import is_pair_file, read_pairs_from_files
from transformer_jax.errors import UserError

Split = Literal["train", "validation", "test"]

#: train.en, train.en.gz
_LANGUAGE_ENDING = r"\.([a-z]{2})(?:\.gz)?$"


def read_pairs(config: DataConfig, split: Split) -> Iterator[tuple[str, str]]:
    """Yields the (source, target) sentences of a split, always in the same order.

    Files named for a split go before the TFDS set. With `validation_from_train`, and
    no validation files, the last pairs of the training text are the validation set,
    and "train" goes without them.

    Raises:
      UserError: at the call, the config names no such split, or contradicts
        itself; while reading, what the readers find wrong.
    """
    _check(config)
    held_out = num_held_out(config)
    if split == "train" and held_out:
        return _all_but_last(_read(config, "train"), held_out)
    if split == "validation" and held_out:
        return _last(_read(config, "train"), held_out)
    return _read(config, split)


def num_held_out(config: DataConfig) -> int:
    """How many training pairs are kept back as the validation set."""
    return 0 if config.validation_source else config.validation_from_train


def with_languages(config: DataConfig) -> DataConfig:
    """`config` with the languages that it leaves open taken from the files' endings.

    Raises:
      UserError: a language is neither named nor the ending of the file's name.
    """
    found: dict[str, Any] = {}
    for side in ("source", "target"):
        if not getattr(config, f"{side}_language"):
            files = getattr(config, f"train_{side}")
            found[f"{side}_language"] = _language_of(files, f"data.{side}_language")
    return dataclasses.replace(config, **found)


def _language_of(files: tuple[str, ...], key: str) -> str:
    endings = {match[1] for path in files if (match := re.search(_LANGUAGE_ENDING, path))}
    if len(endings) != 1:
        where = f" and {','.join(files)} does not end in a language code" if files else ""
        raise UserError(f"{key} is not set{where}: name the language, as in --config.{key}=en")
    return endings.pop()


def has_split(config: DataConfig, split: Split) -> bool:
    """Whether `read_pairs` can read the split; False also where references are missing.

    For a TFDS set the answer may need it prepared.

    Raises:
      UserError: the TFDS set has no such split and its name is not the default, or the config
        contradicts itself.
    """
    _check(config)
    if split == "validation" and num_held_out(config):
        return True
    sources, targets = _files(config, split)
    if sources:
        return bool(targets) or all(map(is_pair_file, sources))
    if not config.tfds_name:
        return False
    from transformer_jax.data.tfds_corpora import has_tfds_split

    name = _tfds_split(config, split)
    if not name:
        return False
    asked_for = name != getattr(DataConfig, f"{split}_split")
    return has_tfds_split(config.tfds_name, name, config.tfds_data_dir, required=asked_for)


def check_splits(config: DataConfig) -> None:
    """Refuses splits that could not be read once the model is trained.

    Raises:
      UserError: source without target, or the other way round; a file is missing; the TFDS set
        lacks a split that is named.
    """
    _check(config)
    splits: tuple[Split, ...] = ("train", "validation", "test")
    for split in splits:
        _require_references(config, split)
        for side, paths in zip(("source", "target"), _files(config, split), strict=True):
            for path in paths:
                if not os.path.exists(path):
                    raise UserError(f"{path}: no such file (data.{split}_{side})")
        if split != "train":
            has_split(config, split)


def corpus_fingerprint(config: DataConfig, split: Split) -> str:
    """A key of the content of a split, for caches: 64 hexadecimal digits.

    Files count with their bytes, not their names or dates; a TFDS set with its
    name, version, split and languages.
    """
    _check(config)
    held_out = num_held_out(config) if split != "test" else 0
    origin: Split = "train" if held_out else split
    sources, targets = _files(config, origin)
    digest = hashlib.sha256()
    if sources:
        _require_references(config, origin)
        for path in (*sources, "", *targets):
            digest.update(f"{_file_hash(path) if path else ''}\n".encode())
            if path and is_pair_file(path):
                kind = "tsv" if ".tsv" in path.lower() else "jsonl"
                direction = f"{config.source_language}>{config.target_language}"
                digest.update(f"{kind} {direction}\n".encode())
    else:
        from transformer_jax.data.tfds_corpora import tfds_fingerprint

        digest.update(tfds_fingerprint(*_tfds_arguments(config, origin)).encode())
    if held_out:
        digest.update(f"{split} without or from the last {held_out}".encode())
    return digest.hexdigest()


def _check(config: DataConfig) -> None:
    if config.tfds_name and config.train_source:
        raise UserError(
            f"data.tfds_name={config.tfds_name} and data.train_source both name a training text; "
            "give one of them"
        )
    if not config.tfds_name and not config.train_source:
        raise UserError(
            "no training text: give data.tfds_name (e.g. wmt14_translate/de-en) or "
            "data.train_source and data.train_target (files)"
        )
    if config.validation_from_train < 0:
        raise UserError(
            f"data.validation_from_train={config.validation_from_train}: expected 0 or more pairs"
        )


def _files(config: DataConfig, split: Split) -> tuple[tuple[str, ...], tuple[str, ...]]:
    if split == "train":
        return config.train_source, config.train_target
    if split == "validation":
        return config.validation_source, config.validation_target
    if split == "test":
        return config.test_source, config.test_target
    raise ValueError(f"split must be train, validation or test, got {split!r}")


def _tfds_split(config: DataConfig, split: Split) -> str:
    by_split = {
        "train": config.train_split,
        "validation": config.validation_split,
        "test": config.test_split,
    }
    return by_split[split]


def _tfds_arguments(config: DataConfig, split: Split) -> tuple[str, str, str, str, str]:
    name = _tfds_split(config, split)
    if not config.tfds_name or not name:
        hint = " or data.validation_from_train" if split == "validation" else ""
        tfds = f"data.{split}_split" if config.tfds_name else f"data.{split}_target"
        keys = f"data.{split}_source and {tfds}" if not config.tfds_name else tfds
        raise UserError(f"no {split} set: give {keys}{hint}")
    return (
        config.tfds_name,
        name,
        config.source_language,
        config.target_language,
        config.tfds_data_dir,
    )


def _require_references(config: DataConfig, split: Split) -> None:
    sources, targets = _files(config, split)
    if targets and not sources:
        raise UserError(f"data.{split}_target is given without data.{split}_source; give both")
    if sources and not targets and not all(map(is_pair_file, sources)):
        raise UserError(
            f"data.{split}_source={','.join(sources)} has no references; give "
            f"data.{split}_target (or a TSV or JSONL file, which holds both languages)"
        )


def _read(config: DataConfig, split: Split) -> Iterator[tuple[str, str]]:
    _require_references(config, split)
    sources, targets = _files(config, split)
    if sources:
        return read_pairs_from_files(
            sources,
            targets,
            config.source_language,
            config.target_language,
            key=f"data.{split}",
        )
    arguments = _tfds_arguments(config, split)
    from transformer_jax.data.tfds_corpora import read_tfds_pairs

    return read_tfds_pairs(*arguments)


def _all_but_last(pairs: Iterator[tuple[str, str]], count: int) -> Iterator[tuple[str, str]]:
    waiting: deque[tuple[str, str]] = deque()
    some = False
    for pair in pairs:
        waiting.append(pair)
        if len(waiting) > count:
            some = True
            yield waiting.popleft()
    if not some:
        raise UserError(_too_many(count, len(waiting)))


def _last(pairs: Iterator[tuple[str, str]], count: int) -> Iterator[tuple[str, str]]:
    kept: deque[tuple[str, str]] = deque(maxlen=count)
    total = 0
    for pair in pairs:
        kept.append(pair)
        total += 1
    if total <= count:
        raise UserError(_too_many(count, total))
    yield from kept


def _too_many(count: int, total: int) -> str:
    return (
        f"data.validation_from_train={count}: the training text has only {total} pairs, "
        "so none would be left to train on"
    )


def _file_hash(path: str) -> str:
    try:
        with open(path, "rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest()
    except FileNotFoundError:
        raise UserError(f"{path}: no such file") from None
    except OSError as error:
        raise UserError(f"{path}: cannot be read ({error.strerror or error})") from None
