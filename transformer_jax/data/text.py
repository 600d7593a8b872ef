"""The text that a `DataConfig` describes: what is the same for all sources."""

import dataclasses
import hashlib
import json
import tempfile
from collections import deque
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import Self

from transformer_jax.data.config import DataConfig, TokenizerConfig
from transformer_jax.data.corpus import IdCorpus, cannot_write, prepare_ids
from transformer_jax.data.sources.base import Pair, Split, absolute_name
from transformer_jax.data.sources.files import Files
from transformer_jax.data.tokenizer import Tokenizers, TokenizerTraining
from transformer_jax.errors import UserError
from transformer_jax.user_cache import user_cache

_IN_MEMORY = 1 << 26  # bytes of text; more is spooled to a file


def resolve(data: DataConfig) -> DataConfig:
    """`data` with both languages set and absolute file names.

    Raises:
        UserError: a language is neither set nor known to the source, or no file is named.
    """
    if isinstance(data.source, Files) and not data.source.train_source:
        raise _no_training_text()
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
    return data.source.has(split) or (split == "validation" and _num_held_out(data, split) > 0)


def _no_training_text() -> UserError:
    return UserError(
        "no training text: give data.source.train_source and data.source.train_target (files), or "
        "another source such as data.source='tfds(name=wmt14_translate/de-en)'"
    )


def check_splits(data: DataConfig) -> None:
    """Checks before training that each split that the config names can be read.

    Raises:
        UserError: it can't, or there is no training text.
    """
    if not data.source.has("train"):
        raise _no_training_text()
    data.source.has("validation")
    data.source.has("test")


def read_pairs(data: DataConfig, split: Split) -> Iterator[Pair]:
    """Yields the (source, target) sentences of a split, always in the same order.

    With `validation_from_train`, and where the source has no validation set, the last pairs of
    the training text are the validation set, and "train" is without them.

    Raises:
        UserError: there is no such split, or the text is damaged.
    """
    count = _num_held_out(data, split)
    pairs = data.source.pairs("train" if count else split, data.languages)
    if not count:
        return pairs
    if split == "train":
        return _all_but_last(pairs, count, deque())
    known = _HELD_OUT and _HELD_OUT.get(fingerprint(data, split))  # a fingerprint takes time
    return iter(known) if known else _last(pairs, count)


def fingerprint(data: DataConfig, split: Split) -> str:
    """A key of the content of a split, for caches: 64 hexadecimal digits."""
    count = _num_held_out(data, split)
    key = data.source.fingerprint("train" if count else split, data.languages)
    if not count:
        return key
    return hashlib.sha256(f"{key} {split}: without or of the last {count}".encode()).hexdigest()


class TrainingText:
    """The training text of a run, read from its source once.

    One reading trains the tokenizers, holds out the validation pairs, and keeps the text for
    `ids`: in memory while it is short, then in a temporary file in the cache folder. Where no
    tokenizer has to be trained, the text is read only for what the cache lacks.

    Use it in a `with` block, which removes the temporary file.

    Args:
        data: where the text is.
        tokenizer: how to train the tokenizers; None: they exist already.
    """

    def __init__(self, data: DataConfig, tokenizer: TokenizerConfig | None = None) -> None:
        self._data = data
        self._cache = Path(data.cache_dir) if data.cache_dir else user_cache() / "ids"
        self._training = TokenizerTraining(tokenizer) if tokenizer else None
        self._spool: _Spool | None = None
        self._held_out: list[Pair] = []

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self._spool:
            self._spool.close()

    def validation(self, limit: int) -> list[Pair]:
        """The first pairs of the validation set, which is read to its end to find mistakes.

        Raises:
            UserError: there is no validation set, or its text is damaged.
        """
        if _num_held_out(self._data, "validation") and self._trains():
            self._read()
            return self._held_out[:limit]
        pairs = read_pairs(self._data, "validation")
        first = list(islice(pairs, limit))
        for _ in pairs:
            pass
        return first

    def tokenizers(self) -> Tokenizers:
        """The tokenizers that the config gives, or trained ones.

        Raises:
            UserError: the text is damaged, or cannot support the vocabulary.
        """
        if self._training is None:
            raise ValueError("this text was opened without a tokenizer config")
        if self._trains():
            self._read()
        return self._training.train()

    def ids(
        self, tokenizers: Tokenizers, sampling_alpha: float | None, *, progress: bool = False
    ) -> IdCorpus:
        """The text without the validation pairs as ids; see `prepare_ids`.

        Raises:
            UserError: the text is damaged, or the cache cannot be written.
        """
        return prepare_ids(
            lambda: iter(self._spool) if self._spool else read_pairs(self._data, "train"),
            tokenizers,
            self._cache,
            fingerprint(self._data, "train"),
            sampling_alpha=sampling_alpha,
            progress=progress,
        )

    def _trains(self) -> bool:
        return self._training is not None and self._training.needs_text

    def _read(self) -> None:
        """Reads the text, unless that is done."""
        if self._spool:
            return
        assert self._training is not None
        last: deque[Pair] = deque()
        count = _num_held_out(self._data, "train")
        pairs = self._data.source.pairs("train", self._data.languages)
        try:
            self._cache.mkdir(parents=True, exist_ok=True)
            self._spool = _Spool(self._cache)
            for pair in _all_but_last(pairs, count, last):
                self._training.add(*pair)
                self._spool.add(pair)
        except OSError as error:
            raise cannot_write(self._cache, error) from None
        self._held_out = list(last)
        _HELD_OUT.clear()
        if count:
            _HELD_OUT[fingerprint(self._data, "validation")] = self._held_out


class _Spool:
    """Pairs that are written once and read back."""

    def __init__(self, folder: Path) -> None:
        self._file = tempfile.SpooledTemporaryFile(  # noqa: SIM115 (closed by its owner)
            _IN_MEMORY, mode="w+", encoding="utf-8", newline="\n", dir=str(folder)
        )

    def add(self, pair: Pair) -> None:
        self._file.write(json.dumps(pair, ensure_ascii=False) + "\n")

    def __iter__(self) -> Iterator[Pair]:
        self._file.seek(0)
        for line in self._file:
            source, target = json.loads(line)
            yield source, target

    def close(self) -> None:
        self._file.close()


#: Held-out pairs of the last text that was read, by its fingerprint. A run shows translations
#: of some of them after training, without reading the text again.
_HELD_OUT: dict[str, list[Pair]] = {}


def _num_held_out(data: DataConfig, split: Split) -> int:
    """How many training pairs are the validation set; 0 for "test", which they don't concern."""
    if split == "test" or not data.validation_from_train or data.source.has("validation"):
        return 0
    return data.validation_from_train


def _all_but_last(pairs: Iterator[Pair], count: int, last: deque[Pair]) -> Iterator[Pair]:
    """Yields all pairs but the last `count`, which are then in `last`."""
    total = 0
    for total, pair in enumerate(pairs, start=1):
        last.append(pair)
        if total > count:
            yield last.popleft()
    if count:
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
