"""A text that a test lists, in files or in a source, and its ids in a cache."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest

from transformer_jax.data.config import Corpus, DataConfig
from transformer_jax.data.id_files import read_entry
from transformer_jax.data.ids import Encoder, ids_of_text
from transformer_jax.data.sampling import SubwordSampler
from transformer_jax.data.sentences import IdCorpus
from transformer_jax.data.sources.base import Languages, Pair, Source, Split
from transformer_jax.data.sources.files import Files
from transformer_jax.data.splits import read_pairs
from transformer_jax.data.tokenizer_pair import Tokenizers
from transformer_jax.errors import UserError


@dataclass(frozen=True)
class Listed(Source):
    """A training text of these pairs, with documents where they have boundaries."""

    listed: tuple[Pair, ...]
    has_documents: bool = False  # type: ignore[misc]

    def has(self, split: Split) -> bool:
        return split == "train"

    def pairs(self, split: Split, languages: Languages) -> Iterator[Pair]:
        yield from self.listed

    def fingerprint(self, split: Split, languages: Languages) -> str:
        return str(hash(self.listed))


def write(
    folder: Path, pairs: Iterable[Pair], languages: Languages = ("en", "de"), name: str = "train"
) -> Files:
    """Files to train on, with an empty line for a boundary."""
    names = [folder / f"{name}.{language}" for language in languages]
    for path, side in zip(names, zip(*pairs, strict=True), strict=True):
        path.write_text("".join(f"{line}\n" for line in side))
    return Files(train_source=(str(names[0]),), train_target=(str(names[1]),))


def text_of(corpora: Sequence[Sequence[Pair]], cache: Path | str, **options: Any) -> DataConfig:
    """These corpora; `options` are those of `DataConfig`."""
    has_documents = bool(options.get("blocks"))
    parts = (Corpus(Listed(tuple(each), has_documents), ("en", "de")) for each in corpora)
    return DataConfig(corpora=tuple(parts), cache_dir=str(cache), **options)


def folder_of(
    data: DataConfig, tokenizers: Tokenizers, sampler: SubwordSampler | None = None
) -> Path:
    """The folder of the text in the cache."""
    return Path(data.cache_dir or "", Encoder(data, tokenizers, sampler).entry())


def stored(
    data: DataConfig, tokenizers: Tokenizers, sampler: SubwordSampler | None = None
) -> IdCorpus:
    """The ids of the text in the cache, of which blocks would be cut."""
    ids_of_text(data, tokenizers, sampler)
    entry = read_entry(folder_of(data, tokenizers, sampler))
    assert entry is not None
    return entry[0]


def change(data: DataConfig, **options: Any) -> DataConfig:
    """The config with other options of its source."""
    return replace(data, source=replace(data.source, **options))


def failure(read: Source | DataConfig, split: Split = "train") -> str:
    """The one line with which reading a split of an English-German text ends."""
    is_source = isinstance(read, Source)
    data = DataConfig(read, source_language="en", target_language="de") if is_source else read
    with pytest.raises(UserError) as caught:
        list(read_pairs(data, split))
    assert "\n" not in str(caught.value)
    return str(caught.value)
