"""The text that a `DataConfig` describes; what all sources have in common is here."""

import dataclasses
import hashlib
from collections import deque
from collections.abc import Iterator

from transformer_jax.data.config import DataConfig
from transformer_jax.data.sources.base import SPLITS, Pair, Split, absolute_name
from transformer_jax.errors import UserError


def resolve(data: DataConfig) -> DataConfig:
    """`data` with both languages set and absolute file names.

    Raises:
        UserError: a language is neither set nor known to the source.
    """
    source_language, target_language = data.languages
    return dataclasses.replace(
        data,
        source=data.source.absolute(),
        source_language=source_language,
        target_language=target_language,
        cache_dir=absolute_name(data.cache_dir) if data.cache_dir else None,
    )


def has_split(data: DataConfig, split: Split) -> bool:
    """Whether `read_pairs` can read the split; a TFDS set may have to be prepared first.

    Raises:
        UserError: the config names the split, and it cannot be read.
    """
    return data.source.has(split) or (split == "validation" and _num_held_out(data) > 0)


def check_splits(data: DataConfig) -> None:
    """Checks before training that each split that the config names can be read.

    Raises:
        UserError: it can't, or there is no training text.
    """
    for split in SPLITS:
        if not data.source.has(split) and split == "train":
            raise UserError(
                "no training text: give data.source.train_source and data.source.train_target "
                "(files), or another source such as data.source='tfds(name=wmt14_translate/de-en)'"
            )


def read_pairs(data: DataConfig, split: Split) -> Iterator[Pair]:
    """Yields the (source, target) sentences of a split, always in the same order.

    With `validation_from_train`, and where the source has no validation set, the last pairs of
    the training text are the validation set, and "train" is without them.

    Raises:
        UserError: there is no such split, or the text is damaged.
    """
    count = _num_held_out(data) if split != "test" else 0
    pairs = data.source.pairs("train" if count else split, data.languages)
    if not count:
        return pairs
    return _last(pairs, count) if split == "validation" else _all_but_last(pairs, count)


def fingerprint(data: DataConfig, split: Split) -> str:
    """A key of the content of a split, for caches: 64 hexadecimal digits."""
    count = _num_held_out(data) if split != "test" else 0
    key = data.source.fingerprint("train" if count else split, data.languages)
    if not count:
        return key
    return hashlib.sha256(f"{key} {split}: without or of the last {count}".encode()).hexdigest()


def _num_held_out(data: DataConfig) -> int:
    """How many training pairs are the validation set."""
    if not data.validation_from_train or data.source.has("validation"):
        return 0
    return data.validation_from_train


def _all_but_last(pairs: Iterator[Pair], count: int) -> Iterator[Pair]:
    waiting: deque[Pair] = deque()
    total = 0
    for total, pair in enumerate(pairs, start=1):
        waiting.append(pair)
        if total > count:
            yield waiting.popleft()
    _require_more(count, total)


def _last(pairs: Iterator[Pair], count: int) -> Iterator[Pair]:
    last = deque(pairs, maxlen=count + 1)
    _require_more(count, len(last))
    last.popleft()
    yield from last


def _require_more(count: int, total: int) -> None:
    if total <= count:
        raise UserError(
            f"data.validation_from_train={count}: the training text has only {total} pairs, "
            "so none would be left to train on"
        )
