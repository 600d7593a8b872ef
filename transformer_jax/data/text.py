"""The text that a `DataConfig` describes: what is the same for all sources."""

import contextlib
import dataclasses
import hashlib
import json
import tempfile
from collections import deque
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import IO, Self

from transformer_jax.data.config import DataConfig, TokenizerConfig
from transformer_jax.data.corpus import IdCorpus, cannot_write, prepare_ids
from transformer_jax.data.sources.base import SPLITS, Pair, Split, absolute_name
from transformer_jax.data.sources.files import file_digest
from transformer_jax.data.terminology import Terminology
from transformer_jax.data.tokenizer import Tokenizers
from transformer_jax.data.tokenizer_training import train_tokenizers
from transformer_jax.errors import UserError
from transformer_jax.user_cache import user_cache

_IN_MEMORY = 1 << 26  # bytes of text; more is spooled to a file


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
        terminology=absolute_name(data.terminology) if data.terminology else None,
        cache_dir=absolute_name(data.cache_dir) if data.cache_dir else None,
    )


def has_split(data: DataConfig, split: Split) -> bool:
    """Whether `read_pairs` can read the split; a TFDS set may have to be prepared first.

    Raises:
        UserError: the config names the split, and it cannot be read.
    """
    return data.source.has(split) or (split == "validation" and _num_held_out(data, split) > 0)


def check_splits(data: DataConfig) -> None:
    """Checks before training that the splits and the terms that the config names can be read.

    Raises:
        UserError: it can't.
    """
    for split in SPLITS:
        data.source.has(split)
    _annotated(data, iter(()))


def read_pairs(data: DataConfig, split: Split) -> Iterator[Pair]:
    """Yields the (source, target) sentences of a split, always in the same order.

    With `validation_from_train`, and where the source has no validation set, the last pairs of
    the training text are the validation set, and "train" is without them. Terms are annotated in
    "train" alone.

    Raises:
        UserError: there is no such split, or the text is damaged.
    """
    count = _num_held_out(data, split)
    pairs = data.source.pairs("train" if count else split, data.languages)
    if not count:
        return _annotated(data, pairs) if split == "train" else pairs
    last: deque[Pair] = deque()
    if split == "train":
        return _annotated(data, _all_but_last(pairs, count, last))
    known = _HELD_OUT.get(fingerprint(data, split)) if _HELD_OUT else None  # it takes time
    if known is None:
        deque(_all_but_last(pairs, count, last), maxlen=0)  # reads to the end
        known = list(last)
    return iter(known)


def fingerprint(data: DataConfig, split: Split) -> str:
    """A key of the content of a split, for caches: 64 hexadecimal digits."""
    count = _num_held_out(data, split)
    key = data.source.fingerprint("train" if count else split, data.languages)
    if count:
        key = _hash(f"{key} {split}: without or of the last {count}")
    if split == "train" and data.terminology:
        terms = file_digest(data.terminology)
        key = _hash(f"{key} with {terms} in a share of {data.terminology_share}")
    return key


def _hash(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


class TrainingText:
    """The training text of a run without the validation pairs, read from its source once.

    The first iteration holds out the validation pairs and keeps the others: in memory while the
    text is short, then in a temporary file in the cache folder, which the end of the `with` block
    removes. Later iterations read the copy.

    Args:
        data: where the text is.
        tokenizer: how to train the tokenizers; None: they exist already.
    """

    def __init__(self, data: DataConfig, tokenizer: TokenizerConfig | None = None) -> None:
        self._data, self._tokenizer = data, tokenizer
        self._cache = Path(data.cache_dir) if data.cache_dir else user_cache() / "ids"
        self._copy: IO[str] | None = None
        self._held_out: list[Pair] = []

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self._copy:
            self._copy.close()

    def __iter__(self) -> Iterator[Pair]:
        """The pairs.

        Raises:
            UserError: the text is damaged, or the cache folder cannot be written.
        """
        copy = self._read()
        copy.seek(0)
        for line in copy:
            source, target = json.loads(line)
            yield source, target

    def validation(self, limit: int) -> list[Pair]:
        """The first pairs of the validation set, which is read to its end to find mistakes.

        Raises:
            UserError: there is no validation set, or its text is damaged.
        """
        if self._tokenizer and _num_held_out(self._data, "validation"):
            self._read()
            return self._held_out[:limit]
        pairs = read_pairs(self._data, "validation")
        first = list(islice(pairs, limit))
        deque(pairs, maxlen=0)  # reads to the end
        return first

    def tokenizers(self) -> Tokenizers:
        """The tokenizers that the config gives, or trained ones.

        Raises:
            UserError: the text is damaged, or cannot support the vocabulary.
        """
        if self._tokenizer is None:
            raise ValueError("this text was opened without a tokenizer config")
        return train_tokenizers(self._tokenizer, self)

    def ids(
        self, tokenizers: Tokenizers, sampling_alpha: float | None, *, progress: bool = False
    ) -> IdCorpus:
        """The text as ids, which is read only for what the cache lacks; see `prepare_ids`.

        Raises:
            UserError: the text is damaged, or the cache cannot be written.
        """
        key = fingerprint(self._data, "train")
        return prepare_ids(
            self, tokenizers, self._cache, key, sampling_alpha=sampling_alpha, progress=progress
        )

    def _read(self) -> IO[str]:
        """The copy of the text, which is made on the first call."""
        if self._copy:
            return self._copy
        last: deque[Pair] = deque()
        count = _num_held_out(self._data, "train")
        pairs = self._data.source.pairs("train", self._data.languages)
        try:
            self._cache.mkdir(parents=True, exist_ok=True)
            with contextlib.ExitStack() as on_failure:
                copy = on_failure.enter_context(
                    tempfile.SpooledTemporaryFile(
                        _IN_MEMORY, mode="w+", encoding="utf-8", newline="\n", dir=str(self._cache)
                    )
                )
                for pair in _annotated(self._data, _all_but_last(pairs, count, last)):
                    copy.write(json.dumps(pair, ensure_ascii=False) + "\n")
                on_failure.pop_all()
        except OSError as error:
            raise cannot_write(self._cache, error) from None
        self._copy, self._held_out = copy, list(last)
        _HELD_OUT.clear()
        if count:
            _HELD_OUT[fingerprint(self._data, "validation")] = self._held_out
        return copy


#: Held-out pairs of the last text that was read, by its fingerprint. A run shows translations
#: of some of them after training, without reading the text again.
_HELD_OUT: dict[str, list[Pair]] = {}


def _num_held_out(data: DataConfig, split: Split) -> int:
    """How many training pairs are the validation set; 0 for "test", which they don't concern."""
    if split == "test" or not data.validation_from_train or data.source.has("validation"):
        return 0
    return data.validation_from_train


def _annotated(data: DataConfig, pairs: Iterator[Pair]) -> Iterator[Pair]:
    """The training pairs, with terms in a share of them.

    Raises:
        UserError: the file of the terms cannot be used.
    """
    if not data.terminology:
        return pairs
    terms = Terminology.from_file(data.terminology)
    return (terms.annotate_training(pair, data.terminology_share) for pair in pairs)


def _all_but_last(pairs: Iterator[Pair], count: int, last: deque[Pair]) -> Iterator[Pair]:
    """Yields all pairs but the last `count`, which are then in `last`."""
    total = 0
    for total, pair in enumerate(pairs, start=1):
        last.append(pair)
        if total > count:
            yield last.popleft()
    if count and total <= count:
        raise UserError(
            f"data.validation_from_train={count}: the training text has only {total} pairs, "
            "so none would be left to train on"
        )
