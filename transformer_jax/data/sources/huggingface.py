"""Parallel text from sets of the `datasets` library: on Hugging Face's hub, or in a folder.

A set is files of Parquet, JSON, CSV and the like, which are read as a stream: nothing of it is kept
on disk. Each row has a text in a column for each language, or a `translation` with both. The
library executes no code of a set (from version 4 on it cannot).
"""

import functools
import hashlib
import logging
import os
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Self

from transformer_jax.data.sources.base import Languages, Pair, Source, Split, missing
from transformer_jax.data.sources.files import file_digest
from transformer_jax.errors import UserError, as_user_error, optional
from transformer_jax.settings.file_names import absolute_name
from transformer_jax.settings.types import Strings

_LOGGER = logging.getLogger(__name__)

_READ_BATCH = 1000


@dataclass(frozen=True)
class HuggingFaceSet(Source):
    """A set of the `datasets` library; it needs `pip install 'transformer-jax[huggingface]'`."""

    path: str  #: a name on the hub, such as Helsinki-NLP/opus-100, or a folder
    name: str | None = None  #: of the set's configuration, such as de-en
    revision: str | None = None  #: of a set on the hub: a commit, tag or branch; none = the newest
    train_split: str = "train"  #: the set's own name of its part to train on
    validation_split: str | None = "validation"  #: none = the set has none
    test_split: str | None = "test"  #: none = the set has none
    columns: Strings = ()
    #: column of each language, such as en=english,de=german; empty = the codes are the names

    def has(self, split: Split) -> bool:
        """Whether the set has it; UserError where a split that the recipe names is missing."""
        name = getattr(self, f"{split}_split")
        if not name:
            return False
        known = self._builder().config.data_files
        if name not in known and name != getattr(HuggingFaceSet, f"{split}_split"):
            raise self._no_split(name)
        return name in known

    def pairs(self, split: Split, languages: Languages) -> Iterator[Pair]:
        """The pairs, one file of the set after the other.

        To train on, pairs of which one text is missing, which is null there, are left out; in other
        splits they are refused. A line end inside a text becomes a space, because a sentence is one
        line everywhere else.
        """
        builder, name = self._ready(split)
        columns = self._columns(languages)
        if builder.name == "csv":  # else "042" is a number, and the word "None" is no text
            builder.config.keep_default_na = False
            builder.config.converters = dict.fromkeys(columns, str)
        place, total, left_out = f"data.source.path={self.path}", 0, 0
        # Networks, formats and damaged files have no common type of errors.
        with as_user_error(f"{place}: cannot read its split {name}", Exception, named=True):
            for rows in builder.as_streaming_dataset(name).iter(_READ_BATCH):
                both = zip(*(self._texts(rows, column) for column in columns), strict=True)
                for source, target in both:
                    total += 1
                    if source is not None and target is not None:
                        yield source, target
                    elif split == "train":
                        left_out += 1
                    else:
                        raise UserError(
                            f"{place}: row {total} of its split {name} has null in place of a "
                            "text: name a split without such rows"
                        )
        if left_out:
            _tell(
                f"{place}: {left_out:,} of {total:,} rows of its split {name} have null in place "
                "of a text: left out"
            )

    def fingerprint(self, split: Split, languages: Languages) -> str:
        """A hash of the split's files and of the columns; the files' names don't matter.

        A file counts with its bytes, or on the hub with the hash that the hub has of them.
        """
        builder, name = self._ready(split)
        content = hashlib.sha256(f"{builder.name}\0{self._columns(languages)}".encode())
        for path in builder.config.data_files[name]:
            content.update(f"\0{_file_key(path)}".encode())
        return content.hexdigest()

    def texts(self, languages: Languages) -> list[tuple[str, str]]:
        """The keys of the set's files, with the columns that are read."""
        builder, name = self._ready("train")
        columns = " ".join(sorted(self._columns(languages)))
        return [(f"{_file_key(path)} {columns}", "") for path in builder.config.data_files[name]]

    def absolute(self) -> Self:
        """A copy with the absolute name of the folder; a name on the hub stays as it is."""
        return replace(self, path=absolute_name(self.path)) if self._is_folder else self

    @property
    def _is_folder(self) -> bool:
        return Path(self.path).expanduser().is_dir()

    def _builder(self) -> Any:
        # A folder may change; what a name on the hub means is asked for once.
        path, load = (absolute_name(self.path), _load) if self._is_folder else (self.path, _hub)
        what = f"data.source.path={self.path}: cannot be opened"
        with as_user_error(what, Exception, named=True):  # network, formats, a missing set
            builder = load(path, self.name, self.revision)
        if not builder.config.data_files:
            raise UserError(f"data.source.path={self.path}: a set without files of its own")
        return builder

    def _ready(self, split: Split) -> tuple[Any, str]:
        """The builder of the set, and its name of the split."""
        name = getattr(self, f"{split}_split")
        if not name:
            raise missing(split, f"data.source.{split}_split")
        builder = self._builder()
        if name not in builder.config.data_files:
            raise self._no_split(name)
        return builder, name

    def _columns(self, languages: Languages) -> list[str]:
        named = dict(each.partition("=")[::2] for each in self.columns)
        if not all(named.values()):
            raise UserError(
                f"data.source.columns={','.join(self.columns)}: write the column of each language, "
                "as in en=english,de=german"
            )
        return [named.get(language, language) for language in languages]

    def _texts(self, rows: dict[str, list[Any]], column: str) -> list[str | None]:
        """A column of some rows, or that part of their `translation`."""
        values, known, both = rows.get(column), list(rows), rows.get("translation", ())
        first = next((row for row in both if row is not None), {column: None})
        if values is None and "translation" in rows and isinstance(first, dict):
            known = list(first)
            if column in first:
                values = [row and row[column] for row in both]
        if values is None:
            raise UserError(
                f"data.source.path={self.path}: no column {column}; it has {', '.join(known)}: "
                "data.source.columns=en=english,de=german names those of the languages"
            )
        for value in values:
            if not isinstance(value, str | None):
                raise UserError(
                    f"data.source.path={self.path}: the column {column} holds {value!r:.40}, which "
                    f"is {type(value).__name__} and not text"
                )
        return [text and text.replace("\r\n", " ").replace("\n", " ") for text in values]

    def _no_split(self, name: str) -> UserError:
        known = ", ".join(map(str, self._builder().config.data_files))
        return UserError(f"data.source.path={self.path} has no split {name}; it has {known}")


def _load(path: str, name: str | None, revision: str | None) -> Any:
    datasets = optional("datasets", "data.source=huggingface", "huggingface")
    return datasets.load_dataset_builder(path, name, revision=revision)


@functools.cache  # a text is read several times
def _tell(message: str) -> None:
    _LOGGER.warning(message)


_hub = functools.lru_cache(maxsize=8)(_load)


def _file_key(path: str) -> str:
    if os.path.isfile(path):
        return file_digest(path)
    from fsspec.core import url_to_fs

    system, place = url_to_fs(path)
    about = system.info(place)
    keys = ("lfs", "blob_id", "ETag", "etag", "size", "mtime")  # which of them, says the server
    return repr([about.get(key) for key in keys])
